/// Short forms of the calls that the public classes make.
#pragma once

#include <cstdint>
#include <vector>

#include "collectives/engine/call.hpp"

namespace tokenyard::collectives::testing {

inline Call barrier_call() {
  return {.signature = {.kind = OperationKind::barrier}};
}

inline Call all_reduce_call(Array array, ReduceOp op = ReduceOp::sum,
                            Algorithm algorithm = Algorithm::automatic) {
  return {.signature = {.kind = OperationKind::all_reduce,
                        .type = array.type,
                        .op = op,
                        .algorithm = algorithm,
                        .elements = array.elements},
          .out = {array},
          .bytes = array.bytes()};
}

inline Call reduce_call(Array array, ReduceOp op, uint32_t root,
                        Algorithm algorithm = Algorithm::automatic) {
  Call call = all_reduce_call(array, op, algorithm);
  call.signature.kind = OperationKind::reduce;
  call.signature.root = root;
  return call;
}

inline Call broadcast_call(Array array, uint32_t root, Algorithm algorithm = Algorithm::automatic) {
  Call call = all_reduce_call(array, ReduceOp::sum, algorithm);
  call.signature.kind = OperationKind::broadcast;
  call.signature.root = root;
  return call;
}

inline Array array_of(std::vector<float>& values) {
  return {values.data(), values.size(), DataType::float32};
}

}  // namespace tokenyard::collectives::testing
