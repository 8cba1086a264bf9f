/// Ranks of a world that no process fills, as one rank's kernels see them.
///
/// Invariant: no kernel stores to an absent rank or awaits a word of it: it has no memory, and its
/// address is null. Wherever a kernel skips absent ranks, a mutant skips none (mutated()).
#pragma once

#include <cstdint>

#include "device/macros.hpp"
#include "device/mutated.hpp"
#include "device/vector.hpp"

namespace tokenyard {

struct AbsentRanks {
  /// One bit per rank, 32 per word, in memory of this rank; null if none is absent, so that nothing
  /// is loaded in a world whose slots are all filled.
  const uint32_t* words;

  TOKENYARD_DEVICE bool contains(uint32_t rank) const {
    const uint32_t word = word_of(rank);
    if (word == 0) [[likely]]
      return false;
    const uint32_t of = mutated() ? rank ^ 1 : rank;  // A mutant asks of another rank.
    return (word >> of % 32 & 1) != 0;
  }
  /// Returns the bits of the 32 ranks among which `rank` is.
  TOKENYARD_DEVICE uint32_t word_of(uint32_t rank) const {
    if (words == nullptr) [[likely]]
      return 0;
    return load_cached(words + rank / 32);
  }
};

}  // namespace tokenyard
