/// Kinds of kernels for dense decoders. Each kind has a kernel of its own, with no more code than
/// it needs.
#pragma once

#include "decoder/tasks/products.hpp"
#include "decoder/tasks/words.hpp"

namespace tokenyard::megakernel {

inline constexpr uint32_t kSumRanksMax = 8;

/// `alone`: the rank has the whole model. `sequences`: sequences decoded together, so that each
/// weight is read once for all of them; a power of two up to 8.
template <bool alone, uint32_t sequences>
struct DenseKind {
  static constexpr uint32_t kSequences = sequences;
  static constexpr uint32_t kRanksMax = alone ? 1 : kSumRanksMax;
  /// The scope of all additions to a sum.
  static constexpr Scope kScope = alone ? Scope::gpu : Scope::sys;
};
template <uint32_t sequences = 1>
using Alone = DenseKind<true, sequences>;
template <uint32_t sequences = 1>
using Together = DenseKind<false, sequences>;
inline constexpr uint32_t kSequencesMax = 8;

/// The sums that products of one stage are added to. Each rank's sums get the same terms in all.
template <class Kind>
struct SumsOfRanks {
  Peer<uint64_t> of_rank[Kind::kRanksMax];  ///< vectors in VectorWords order
  uint32_t count;

  TOKENYARD_DEVICE uint32_t ranks() const { return Kind::kRanksMax == 1 ? 1 : count; }
  /// Adds the products of two neighbouring rows to the sums of every rank, by one thread.
  TOKENYARD_DEVICE void add(uint32_t row, uint32_t sequence, const RowPair& products,
                            uint32_t* broken) const {
    const uint32_t chunk = row / kChunk, element = row % kChunk;
    const int64_t even = units_of_term(products.even, broken);
    const int64_t odd = units_of_term(products.odd, broken);
    TOKENYARD_KEEP_ROLLED
    for (uint32_t rank = 0; rank < ranks(); ++rank) {
      add_units<Kind::kScope>(of_rank[rank] + Words::at(sequence, chunk, element), even);
      add_units<Kind::kScope>(of_rank[rank] + Words::at(sequence, chunk, element + 1), odd);
    }
  }

 private:
  using Words = VectorWords<Kind::kSequences>;
};

}  // namespace tokenyard::megakernel
