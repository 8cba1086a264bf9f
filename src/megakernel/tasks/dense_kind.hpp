/// What a kernel of dense decoders is made for. Each kind is a kernel of its own, that has no more
/// code than it needs.
#pragma once

#include "megakernel/tasks/words.hpp"

namespace tokenyard::megakernel {

inline constexpr uint32_t kSumRanksMax = 8;

/// `alone`: a rank that shares the model with nobody. `sequences`: decoded side by side, so that
/// each weight is read once for all of them; a power of two up to 8.
template <bool alone, uint32_t sequences>
struct DenseKind {
  static constexpr uint32_t kSequences = sequences;
  static constexpr uint32_t kRanksMax = alone ? 1 : kSumRanksMax;
  /// In which all who add to a sum are.
  static constexpr Scope kScope = alone ? Scope::gpu : Scope::sys;
};
template <uint32_t sequences = 1>
using Alone = DenseKind<true, sequences>;
template <uint32_t sequences = 1>
using Together = DenseKind<false, sequences>;
inline constexpr uint32_t kSequencesMax = 8;

/// Of an element for each sequence, in registers: an index that is not known beforehand would make
/// the compiler give them addresses.
template <uint32_t kSequences>
DEVICE float of_sequence(const float (&values)[kSequences], uint32_t sequence) {
  float value = values[0];
  UNROLL
  for (uint32_t s = 1; s < kSequences; ++s) value = s == sequence ? values[s] : value;
  return value;
}

/// The sums of one stage on each rank: all get the same terms, so all have the same bits.
template <class Kind>
struct SumsOfRanks {
  Peer<uint64_t> of_rank[Kind::kRanksMax];
  uint32_t count;

  DEVICE uint32_t ranks() const { return Kind::kRanksMax == 1 ? 1 : count; }
  /// By lanes that have the same value, each for another rank; ranks that there are not get none.
  DEVICE void add(uint32_t rank, uint32_t word, float value, uint32_t* broken) const {
    if (rank < ranks()) add_units<Kind::kScope>(of_rank[rank] + word, units_of_term(value, broken));
  }
};

}  // namespace tokenyard::megakernel
