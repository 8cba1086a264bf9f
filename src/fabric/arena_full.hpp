/// The error of an arena that has no room for a block.
#pragma once

#include <cstdint>
#include <string>

#include "tokenyard/error.hpp"

namespace tokenyard {

class ArenaFull : public InvalidArgument {
 public:
  /// `seen`: how the arena's bytes are used.
  ArenaFull(uint64_t needed, uint64_t free, const std::string& seen)
      : InvalidArgument("arena_bytes", "room for " + std::to_string(needed) + " more bytes", seen),
        needed(needed),
        free(free) {}
  uint64_t needed, free;  ///< bytes; those free in one piece
};

}  // namespace tokenyard
