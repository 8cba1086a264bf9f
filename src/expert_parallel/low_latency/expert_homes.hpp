/// Which rank holds an expert: rank after rank, each as many as the others, and the first
/// `experts % ranks` ranks one more.
#pragma once

#include <algorithm>
#include <cstdint>

#include "expert_parallel/low_latency/divisor.hpp"

namespace tokenyard::low_latency {

struct ExpertHomes {
  Divisor each;       ///< experts that every rank holds
  uint32_t wide = 0;  ///< ranks that hold one more: the first ones
  Divisor of_wide;    ///< what these hold

  /// There are no more ranks than experts.
  static constexpr ExpertHomes of(uint32_t experts, uint32_t ranks) {
    const uint32_t each = experts / ranks;
    return {Divisor::of(each), experts % ranks, Divisor::of(each + 1)};
  }
  HOST_DEVICE uint32_t held_by(uint32_t rank) const { return each.divisor + (rank < wide ? 1 : 0); }
  HOST_DEVICE uint32_t held_at_most() const { return each.divisor + (wide != 0 ? 1 : 0); }
  /// First expert of a rank.
  HOST_DEVICE uint32_t first_of(uint32_t rank) const {
    return rank * each.divisor + std::min(rank, wide);
  }
  /// Mostly experts divide evenly, and then this is one division. Of two quotients that of the
  /// wrong divisor is never the larger one: by `each` an expert of a wide rank is `wide` too far
  /// down, and by `of_wide` each rank beyond them takes more experts than it has.
  HOST_DEVICE uint32_t rank_of(uint32_t expert) const {
    if (wide == 0) [[likely]]
      return each.quotient(expert);
    return std::max(of_wide.quotient(expert), each.quotient(expert - std::min(expert, wide)));
  }
};

}  // namespace tokenyard::low_latency
