/// What all ranks must agree on about an operation. Travels with each of its frames, so that a rank
/// that calls something else is found out by the first frame that it sends or gets.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "tokenyard/collectives.hpp"

namespace tokenyard::collectives {

enum class OperationKind : uint8_t {
  barrier,
  monitored_barrier,
  all_reduce,
  reduce,
  broadcast,
  all_gather,
  gather,
  scatter,
  reduce_scatter,
  all_to_all,
  close,  ///< the end of the group
};
std::string name_of(OperationKind kind);
bool is_rooted(OperationKind kind);

/// Where something does not apply to an operation, it is 0.
struct Signature {
  OperationKind kind = OperationKind::barrier;
  DataType type = DataType::uint8;
  ReduceOp op = ReduceOp::sum;
  Algorithm algorithm = Algorithm::automatic;
  uint32_t root = 0;
  uint64_t elements = 0;  ///< in all; 0 where only pairs of ranks agree on lengths
  uint64_t lengths = 0;   ///< of the parts, as one number
  bool operator==(const Signature&) const = default;
};
static_assert(sizeof(Signature) == 24);

/// "all_reduce(sum, float32[4])".
std::string describe(const Signature& signature);

/// One number that tells lists of lengths apart.
uint64_t fingerprint(std::span<const uint64_t> lengths);

}  // namespace tokenyard::collectives
