/// A set of ranks, passed to kernels by value.
#pragma once

#include <cstdint>

#include "device/macros.hpp"

namespace tokenyard {

struct RankSet {
  static constexpr uint32_t kRanksMax = 128;
  uint32_t words[kRanksMax / 32];

  TOKENYARD_HOST_DEVICE bool contains(uint32_t rank) const {
    return words[rank / 32] >> rank % 32 & 1;
  }
  void insert(uint32_t rank) { words[rank / 32] |= 1u << rank % 32; }
  void erase(uint32_t rank) { words[rank / 32] &= ~(1u << rank % 32); }
  static RankSet first(uint32_t ranks) {
    RankSet set{};
    for (uint32_t rank = 0; rank < ranks; ++rank) set.insert(rank);
    return set;
  }
};

}  // namespace tokenyard
