/// The part of a call on which all ranks must agree. It travels with each frame of the operation,
/// so a rank that makes another call is detected by its first frame.
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
  close,  ///< closes the group
};
std::string name_of(OperationKind kind);
bool is_rooted(OperationKind kind);

/// Fields that do not apply to an operation are 0.
struct Signature {
  OperationKind kind = OperationKind::barrier;
  DataType type = DataType::uint8;
  ReduceOp op = ReduceOp::sum;
  Algorithm algorithm = Algorithm::automatic;
  uint32_t root = 0;
  uint64_t elements = 0;  ///< total; 0 if only pairs of ranks agree on lengths
  uint64_t lengths = 0;   ///< fingerprint of the parts' lengths
  bool operator==(const Signature&) const = default;
};
static_assert(sizeof(Signature) == 24);

/// Returns "all_reduce(sum, float32[4])" and the like.
std::string describe(const Signature& signature);

/// Returns a hash of the lengths, never 0.
uint64_t fingerprint(std::span<const uint64_t> lengths);

}  // namespace tokenyard::collectives
