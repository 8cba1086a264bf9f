/// Division of experts, or of the places of an expert map, among ranks in rank order: each rank
/// holds `experts / ranks`, and the first `experts % ranks` ranks hold one more.
#pragma once

#include <algorithm>
#include <cstdint>

#include "device/macros.hpp"

namespace tokenyard {

struct ExpertPartition {
  uint32_t each = 0;      ///< experts that every rank holds; 0 if there are fewer experts than
                          ///< ranks
  uint32_t wide = 0;      ///< ranks that hold one more; they come first
  uint32_t wide_end = 0;  ///< first expert after those of the wide ranks
  uint64_t of_wide = 0;   ///< 2^32 / (each + 1), rounded up
  uint64_t of_other = 0;  ///< 2^32 / each, rounded up; 0 if `each` is 0

  static constexpr ExpertPartition of(uint32_t experts, uint32_t ranks) {
    const uint32_t each = experts / ranks;
    return {.each = each,
            .wide = experts % ranks,
            .wide_end = experts % ranks * (each + 1),
            .of_wide = inverse_of(each + 1),
            .of_other = each == 0 ? 0 : inverse_of(each)};
  }

  TOKENYARD_HOST_DEVICE bool even() const { return wide == 0; }
  TOKENYARD_HOST_DEVICE uint32_t held_by(uint32_t rank) const {
    return each + (rank < wide ? 1 : 0);
  }
  TOKENYARD_HOST_DEVICE uint32_t held_at_most() const { return each + (even() ? 0 : 1); }
  /// Returns the first expert of a rank.
  TOKENYARD_HOST_DEVICE uint32_t first_of(uint32_t rank) const {
    return rank * each + std::min(rank, wide);
  }
  /// Returns the rank of an expert without dividing. Exact below 2^16 experts; no block's shared
  /// memory could count more.
  TOKENYARD_HOST_DEVICE uint32_t rank_of(uint32_t expert) const {
    // Selects instead of branching: one multiplication for either case, and the code exists once.
    const bool is_wide = expert < wide_end;
    const uint32_t begin = is_wide ? 0 : wide_end, first_rank = is_wide ? 0 : wide;
    return first_rank + quotient(expert - begin, is_wide ? of_wide : of_other);
  }

 private:
  static constexpr uint64_t inverse_of(uint32_t divisor) {
    return uint64_t{0xffffffffu / divisor} + 1;
  }
  TOKENYARD_HOST_DEVICE static uint32_t quotient(uint32_t dividend, uint64_t inverse) {
    return static_cast<uint32_t>(dividend * inverse >> 32);
  }
};

}  // namespace tokenyard
