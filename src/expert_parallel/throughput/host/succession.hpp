/// The agreement of ranks when they make a session: by all of them at first, or by those that
/// go on, and newcomers.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tokenyard/world.hpp"

namespace tokenyard::throughput {

/// Legacy of a session for the next one of its object.
struct Legacy {
  uint64_t finished = 0;     ///< calls of the object that this rank has finished
  std::vector<int32_t> map;  ///< the expert map that was set, for the next one's places; empty: the
                             ///< plain one
};

struct Succession {
  uint64_t finished = 0;  ///< calls that all ranks which go on have finished
  /// The expert map to set, that of the ranks which have finished no more: a rank may have set
  /// another one with a call that others have not finished. Empty: the plain one.
  std::vector<int32_t> map;
  std::vector<uint32_t> newcomers;  ///< ascending, if others go on

  /// Collective. `mine`: of this rank's session before; none on a newcomer. Throws InvalidArgument
  /// on all ranks alike if such maps differ.
  static Succession agree(World& world, const std::optional<Legacy>& mine);
};

}  // namespace tokenyard::throughput
