/// What a kernel of dense decoders is made for. Each kind is a kernel of its own, that has no more
/// code than it needs.
#pragma once

#include "megakernel/tasks/words.hpp"

namespace tokenyard::megakernel {

inline constexpr uint32_t kSumRanksMax = 8;

/// `alone`: a rank that shares the model with nobody.
template <bool alone>
struct DenseKind {
  static constexpr uint32_t kRanksMax = alone ? 1 : kSumRanksMax;
  /// In which all who add to a sum are.
  static constexpr Scope kScope = alone ? Scope::gpu : Scope::sys;
};
using Alone = DenseKind<true>;
using Together = DenseKind<false>;

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
