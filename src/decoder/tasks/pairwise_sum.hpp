/// Sums whose bits do not depend on how their terms are divided among threads.
#pragma once

#include <cstdint>

#include "device/device.hpp"
#include "device/unroll.hpp"

namespace tokenyard::megakernel {

/// Sums 2^n terms as they arrive, by recursive halves: each half is summed first. So the sum of
/// sums over 2^m neighbours each has the same bits as the sum over all.
class PairwiseSum {
 public:
  static constexpr uint32_t kTermsMax = 16;

  /// Adds a term. Returns the sum if it is the last of 2^n terms. `index`: that of the term, from 0
  /// on.
  TOKENYARD_DEVICE float with(uint32_t index, float term) {
    if (index % 2 == 0) return one_ = term;
    term = one_ + term;
    if (index % 4 < 2) return two_ = term;
    term = two_ + term;
    if (index % 8 < 4) return four_ = term;
    term = four_ + term;
    if (index % 16 < 8) return eight_ = term;
    return eight_ + term;
  }

 private:
  float one_ = 0, two_ = 0, four_ = 0, eight_ = 0;  ///< sums of that many latest terms
};

/// Returns the same sum of terms that are all present.
template <uint32_t kTerms>
TOKENYARD_DEVICE float pairwise_sum(float (&terms)[kTerms]) {
  TOKENYARD_UNROLL
  for (uint32_t width = 1; width < kTerms; width *= 2) {
    TOKENYARD_UNROLL
    for (uint32_t i = 0; i < kTerms; i += 2 * width) terms[i] += terms[i + width];
  }
  return terms[0];
}

}  // namespace tokenyard::megakernel
