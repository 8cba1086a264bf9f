/// The residual vector of a model's layers, as counted sums: each stage has its own sums, to which
/// all blocks add their parts of a product, and one block per chunk adds the previous vector.
///
/// No block waits for the readers of a stage's sums, only for their results. The last stage clears
/// all sums but its own, which is safe by this
///
/// Invariant: a block polls sums only if the blocks that clear them wait for results that it
/// computes afterwards.
///
///   - A block of the last stage clears after its threads have met, so it has awaited the whole
///     last vector.
///   - A block with rows of a product adds or publishes them after its threads have met, and they
///     have read the vector by then. Every word of the next vector has terms from all such rows.
///   - A thread that carries a word on reads only that word, before it carries it; every reader
///     of the next vector awaits that term. A block without rows does nothing else.
///
/// So a block that has a whole vector knows that no block still reads earlier ones.
#pragma once

#include "decoder/tasks/dense_kind.hpp"
#include "decoder/tasks/slices.hpp"
#include "decoder/tasks/words.hpp"

namespace tokenyard::megakernel {

/// A contiguous range of chunks or words that one block processes.
struct BlockShare {
  uint32_t begin, end;
};

/// The source of the vectors of all sequences, and the part of them that the block carries on.
template <class Kind>
struct Residual {
  const uint64_t* sums;   ///< vectors in VectorWords order, or null
  const BFloat16* table;  ///< [vocabulary][hidden] used instead of sums
  const uint32_t* token;  ///< [sequences] rows of the table
  uint32_t terms;         ///< per sum
  Event event;            ///< that the sums carry
  uint64_t* carry_to;     ///< sums of the next stage, or null
  BlockShare carried;     ///< chunks that this block carries on
  uint32_t* broken;
  uint32_t hidden;

  using Words = VectorWords<Kind::kSequences>;

  TOKENYARD_DEVICE uint32_t chunks() const { return hidden / kChunk; }
  /// Returns a sequence's row of the table, in the first layer.
  TOKENYARD_DEVICE const BFloat16* row(uint32_t sequence) const {
    return table + size_t{token[sequence]} * hidden;
  }
};

template <class Kind>
struct NormedShared {
  SlicesShared<Kind::kSequences> slices;
  alignas(16) float squares[Kind::kSequences][kComputeWarpsMax];
};

/// Chunks whose words a lane loads at once.
template <class Kind>
inline constexpr uint32_t kTogether = Kind::kSequences < 4 ? Kind::kSequences : 4;

/// Waits, by each lane, for the words of its chunks from `first` on, and returns them in `sums`.
template <class Kind>
TOKENYARD_DEVICE void await_words(Context& context, const Residual<Kind>& residual,
                                  const LaneChunks<Kind::kSequences>& lane, uint32_t first,
                                  uint64_t (&sums)[kTogether<Kind>][kChunk]) {
  const uint64_t* chunks[kTogether<Kind>];
  TOKENYARD_UNROLL
  for (uint32_t n = 0; n < kTogether<Kind>; ++n)
    chunks[n] =
        residual.sums + Residual<Kind>::Words::at(lane.sequence(), lane.chunk(first + n), 0);
  context.await_carried(residual.event, [&] {
    // Checks the term counts of all words at once.
    uint32_t missing = 0;
    TOKENYARD_UNROLL
    for (uint32_t n = 0; n < kTogether<Kind>; ++n) {
      TOKENYARD_UNROLL
      for (uint32_t i = 0; i < kChunk; ++i) {
        sums[n][i] = load<Order::relaxed, Kind::kScope>(chunks[n] + i * kWarpLanes);
        missing |= static_cast<uint32_t>(sums[n][i]) ^ residual.terms;
      }
    }
    return terms_of_sum(missing) == 0;
  });
}

/// Returns a chunk of a table's row as words, whose counts are meaningless.
TOKENYARD_DEVICE void words_of_row(const BFloat16* row, uint32_t chunk, uint32_t* broken,
                                   uint64_t (&sums)[kChunk]) {
  float values[kChunk];
  unpack(load_vector(reinterpret_cast<const Bytes16*>(row) + chunk), values);
  TOKENYARD_UNROLL
  for (uint32_t i = 0; i < kChunk; ++i)
    sums[i] = static_cast<uint64_t>(units_of_term(values[i], broken)) << 8;
}

/// Waits, by each warp, until one word of its slice has arrived. If all lanes polled all words, the
/// polls would delay the words that they wait for.
template <class Kind>
TOKENYARD_DEVICE void await_first_word(Context& context, const Residual<Kind>& residual,
                                       const LaneChunks<Kind::kSequences>& lane) {
  if (residual.sums != nullptr && warp::elect()) {
    const uint64_t* const word = residual.sums + Residual<Kind>::Words::at(0, lane.chunk(0), 0);
    context.await_carried(residual.event, [&] {
      return terms_of_sum(load<Order::relaxed, Kind::kScope>(word)) == residual.terms;
    });
  }
  warp::sync();
}

/// Returns x * norm of a chunk, by each lane; zeros for a chunk that does not exist.
TOKENYARD_DEVICE SplitChunk normed_chunk(bool there, const uint64_t (&sums)[kChunk],
                                         const Bytes16& norm, float& squares) {
  float values[kChunk], weights[kChunk];
  unpack(norm, weights);
  float sum = 0;
  TOKENYARD_UNROLL
  for (uint32_t e = 0; e < kChunk; ++e) {
    values[e] = sum_value(sums[e]);
    sum += values[e] * values[e];
    values[e] *= weights[e];
  }
  squares = there ? sum : 0;
  const SplitChunk chunk = split(values);
  return there ? chunk : SplitChunk{};
}

/// Returns the sum over a slice of the lanes' values per chunk, by a warp. The order of additions
/// does not depend on the number of chunks per lane: first chunks 16 apart, then 8, and so on.
template <uint32_t kSequences>
TOKENYARD_DEVICE float slice_sum(float (&of_chunks)[kSequences]) {
  TOKENYARD_UNROLL
  for (uint32_t width = kSequences / 2; width > 0; width /= 2) {
    TOKENYARD_UNROLL
    for (uint32_t i = 0; i < width; ++i) of_chunks[i] += of_chunks[i + width];
  }
  float sum = of_chunks[0];
  TOKENYARD_UNROLL
  for (uint32_t mask = VectorWords<kSequences>::kTogether / 2; mask > 0; mask /= 2)
    sum += warp::shuffle_xor(sum, mask);
  return sum;
}

/// Returns the warp's slice of x * norm, by all threads. The sums of squares are in shared memory
/// after the block's next meeting.
template <class Kind>
TOKENYARD_DEVICE Fragments<false> normed_slice(Context& context, NormedShared<Kind>& shared,
                                               const Residual<Kind>& residual,
                                               const BFloat16* norm) {
  constexpr uint32_t kSequences = Kind::kSequences;
  const auto lane = chunks_of_lane<kSequences>(context.warp(), residual.chunks());
  const BFloat16* const row = residual.sums == nullptr ? residual.row(lane.sequence()) : nullptr;
  SplitChunk read[kSequences];
  float squares[kSequences];
  TOKENYARD_UNROLL
  for (uint32_t first = 0; first < kSequences; first += kTogether<Kind>) {
    // In flight while the vector is awaited.
    Bytes16 weights[kTogether<Kind>];
    TOKENYARD_UNROLL
    for (uint32_t n = 0; n < kTogether<Kind>; ++n)
      weights[n] = load_vector<Cache::read_only>(reinterpret_cast<const Bytes16*>(norm) +
                                                 lane.chunk(first + n));
    if (first == 0) await_first_word(context, residual, lane);
    uint64_t sums[kTogether<Kind>][kChunk];
    if (residual.sums != nullptr) {
      await_words(context, residual, lane, first, sums);
    } else {
      TOKENYARD_UNROLL
      for (uint32_t n = 0; n < kTogether<Kind>; ++n)
        words_of_row(row, lane.chunk(first + n), residual.broken, sums[n]);
    }
    TOKENYARD_UNROLL
    for (uint32_t n = 0; n < kTogether<Kind>; ++n)
      read[first + n] =
          normed_chunk(lane.there(first + n), sums[n], weights[n], squares[first + n]);
  }
  const float sum = slice_sum(squares);
  if (lane.place() == 0) shared.squares[lane.sequence()][context.warp()] = sum;
  return dealt<false>(shared.slices, context.warp(), lane, read);
}

/// Adds the block's part of the vectors to the next stage's sums, by all threads, one word each. A
/// block with rows does this after its products, since other blocks wait for these first.
template <class Kind>
TOKENYARD_DEVICE void carry_on(Context& context, const Residual<Kind>& residual) {
  constexpr uint32_t kSequences = Kind::kSequences;
  const BlockShare& mine = residual.carried;
  const uint32_t words = (mine.end - mine.begin) * kChunk * kSequences;
  TOKENYARD_KEEP_ROLLED
  for (uint32_t i = context.thread(); i < words; i += context.threads()) {
    const uint32_t sequence = i % kSequences, element = i / kSequences % kChunk;
    const uint32_t chunk = mine.begin + i / (kSequences * kChunk);
    const uint32_t at = Residual<Kind>::Words::at(sequence, chunk, element);
    int64_t units = 0;
    if (residual.sums != nullptr) {
      context.await_carried(residual.event, [&] {
        const uint64_t sum = load<Order::relaxed, Kind::kScope>(residual.sums + at);
        units = units_of_sum(sum);
        return terms_of_sum(sum) == residual.terms;
      });
    } else {
      units = units_of_term(to_float(residual.row(sequence)[chunk * kChunk + element]),
                            residual.broken);
    }
    add_units<Kind::kScope>(Peer<uint64_t>(residual.carry_to + at),
                            units_carried(units, residual.broken));
  }
}

/// Returns the factor 1 / rms(x), which products with a sequence's x * norm still need.
template <class Kind>
TOKENYARD_DEVICE float scale_of(const Context& context, const NormedShared<Kind>& shared,
                                uint32_t sequence, uint32_t hidden, float epsilon) {
  float sum = 0;
  TOKENYARD_UNROLL
  for (uint32_t warp = 0; warp < kComputeWarpsMax; ++warp)
    sum += warp < context.warps() ? shared.squares[sequence][warp] : 0;
  return reciprocal_square_root(sum / static_cast<float>(hidden) + epsilon);
}

}  // namespace tokenyard::megakernel
