/// The calls of all operations in one form, with their arguments checked.
#pragma once

#include <cstdint>
#include <string>

#include "collectives/device/kernels/call_word.hpp"
#include "collectives/device/kernels/movement.hpp"
#include "tokenyard/collectives.hpp"
#include "tokenyard/tensor.hpp"

namespace tokenyard::device_collectives {

/// The arguments of an operation. `input` and `result` are not given where the rank has none.
struct Request {
  Operation operation = Operation::barrier;
  ConstTensorView input;
  TensorView result;
  ReduceOp op = ReduceOp::sum;
  double factor = 1;
  uint32_t root = 0;
  uint32_t rank = 0, ranks = 1;  ///< this rank's slot, and how many slots there are

  DataType type() const { return input.given() ? input.type : result.type; }
};

/// Throws InvalidArgument unless the array is given, contiguous and aligned to its elements.
void check_array(const char* argument, const ConstTensorView& view);

/// Throws InvalidArgument unless the array has this type and number of elements.
void check_parts(const char* argument, const ConstTensorView& view, DataType type,
                 uint64_t elements);

/// Returns the movement of a request's whole messages. Throws InvalidArgument.
Movement movement_of(const Request& request);

/// Returns whether a call, whose arguments are right, writes its result over its input.
bool overwrites_input(const Request& request);

bool has_root(Operation operation);

/// Returns "all_reduce", ...
const char* name_of(Operation operation);

/// Returns "all_reduce(sum) of float32", ...
std::string describe(const Signature& signature);

}  // namespace tokenyard::device_collectives
