/// The vector that runs through a model's layers, as counted sums: each stage has sums of its own,
/// to which all blocks add their parts of a product and one block the vector before it.
///
/// Who reads a stage's sums is awaited by nobody; only what it makes of them is. The last stage
/// clears all sums but its own, so
///
/// Invariant: a block polls sums only if those who clear them wait for what it makes afterwards.
///
///   - It clears once all its threads have met, so it has awaited the whole last vector.
///   - A block with rows of a product adds or tells them after its threads have met, which have
///   read
///     the vector by then. Every word of the next vector has terms made of all such rows.
///   - A thread that carries a word on reads no other word for it, and each before it carries it:
///     that term every reader of the next vector awaits. A block without rows does nothing else.
///
/// So whoever has the whole of a vector knows that nobody looks at those before it.
#pragma once

#include "decoder/tasks/dense_kind.hpp"
#include "decoder/tasks/slices.hpp"
#include "decoder/tasks/words.hpp"

namespace tokenyard::megakernel {

/// Neighbours, of chunks or of words, that one block has to do with.
struct BlockShare {
  uint32_t begin, end;
};

/// Where a block reads the vectors of all sequences, and which part of them the block carries on.
template <class Kind>
struct Residual {
  const uint64_t* sums;   ///< vectors in the order of VectorWords, or null
  const BFloat16* table;  ///< [vocabulary][hidden] instead of sums
  const uint32_t* token;  ///< [sequences] of the table
  uint32_t terms;         ///< of each sum
  Event event;            ///< that they carry
  uint64_t* carry_to;     ///< sums of the next stage, or null
  BlockShare carried;     ///< chunks, by this block
  uint32_t* broken;
  uint32_t hidden;

  using Words = VectorWords<Kind::kSequences>;

  DEVICE uint32_t chunks() const { return hidden / kChunk; }
  /// In the first layer.
  DEVICE const BFloat16* row(uint32_t sequence) const {
    return table + size_t{token[sequence]} * hidden;
  }
};

template <class Kind>
struct NormedShared {
  SlicesShared<Kind::kSequences> slices;
  alignas(16) float squares[Kind::kSequences][kComputeWarpsMax];
};

/// Chunks whose words a lane asks for at once.
template <class Kind>
inline constexpr uint32_t kTogether = Kind::kSequences < 4 ? Kind::kSequences : 4;

/// By each lane, for its chunks from `first` on: words as they are.
template <class Kind>
DEVICE void await_words(Context& context, const Residual<Kind>& residual,
                        const LaneChunks<Kind::kSequences>& lane, uint32_t first,
                        uint64_t (&sums)[kTogether<Kind>][kChunk]) {
  const uint64_t* chunks[kTogether<Kind>];
  UNROLL
  for (uint32_t n = 0; n < kTogether<Kind>; ++n)
    chunks[n] =
        residual.sums + Residual<Kind>::Words::at(lane.sequence(), lane.chunk(first + n), 0);
  context.await_carried(residual.event, [&] {
    // The terms counted in all of them at once.
    uint32_t missing = 0;
    UNROLL
    for (uint32_t n = 0; n < kTogether<Kind>; ++n) {
      UNROLL
      for (uint32_t i = 0; i < kChunk; ++i) {
        sums[n][i] = load<Order::relaxed, Kind::kScope>(chunks[n] + i * kWarpLanes);
        missing |= static_cast<uint32_t>(sums[n][i]) ^ residual.terms;
      }
    }
    return terms_of_sum(missing) == 0;
  });
}

/// The words of a chunk, whose counts mean nothing, of a row of a table.
DEVICE void words_of_row(const BFloat16* row, uint32_t chunk, uint32_t* broken,
                         uint64_t (&sums)[kChunk]) {
  float values[kChunk];
  unpack(load_vector(reinterpret_cast<const Bytes16*>(row) + chunk), values);
  UNROLL
  for (uint32_t i = 0; i < kChunk; ++i)
    sums[i] = static_cast<uint64_t>(units_of_term(values[i], broken)) << 8;
}

/// By each warp: until one word of its slice has come. Were all lanes to poll all words, the polls
/// would be in the way of what they wait for.
template <class Kind>
DEVICE void await_first_word(Context& context, const Residual<Kind>& residual,
                             const LaneChunks<Kind::kSequences>& lane) {
  if (residual.sums != nullptr && warp::elect()) {
    const uint64_t* const word = residual.sums + Residual<Kind>::Words::at(0, lane.chunk(0), 0);
    context.await_carried(residual.event, [&] {
      return terms_of_sum(load<Order::relaxed, Kind::kScope>(word)) == residual.terms;
    });
  }
  warp::sync();
}

/// By each lane: x * norm of a chunk. Of one that is not there: zeros.
DEVICE SplitChunk normed_chunk(bool there, const uint64_t (&sums)[kChunk], const Bytes16& norm,
                               float& squares) {
  float values[kChunk], weights[kChunk];
  unpack(norm, weights);
  float sum = 0;
  UNROLL
  for (uint32_t e = 0; e < kChunk; ++e) {
    values[e] = sum_value(sums[e]);
    sum += values[e] * values[e];
    values[e] *= weights[e];
  }
  squares = there ? sum : 0;
  const SplitChunk chunk = split(values);
  return there ? chunk : SplitChunk{};
}

/// By a warp: the sum over a slice of what lanes have of its chunks. Always the same pairs of
/// chunks first, however many of them a lane has: 16 apart, then 8, and so on.
template <uint32_t kSequences>
DEVICE float slice_sum(float (&of_chunks)[kSequences]) {
  UNROLL
  for (uint32_t width = kSequences / 2; width > 0; width /= 2) {
    UNROLL
    for (uint32_t i = 0; i < width; ++i) of_chunks[i] += of_chunks[i + width];
  }
  float sum = of_chunks[0];
  UNROLL
  for (uint32_t mask = VectorWords<kSequences>::kTogether / 2; mask > 0; mask /= 2)
    sum += warp::shuffle_xor(sum, mask);
  return sum;
}

/// By all threads: the warp's slice of x * norm. The sums of squares are in shared memory when the
/// block has met next.
template <class Kind>
DEVICE Fragments<false> normed_slice(Context& context, NormedShared<Kind>& shared,
                                     const Residual<Kind>& residual, const BFloat16* norm) {
  constexpr uint32_t kSequences = Kind::kSequences;
  const auto lane = chunks_of_lane<kSequences>(context.warp(), residual.chunks());
  const BFloat16* const row = residual.sums == nullptr ? residual.row(lane.sequence()) : nullptr;
  SplitChunk read[kSequences];
  float squares[kSequences];
  UNROLL
  for (uint32_t first = 0; first < kSequences; first += kTogether<Kind>) {
    // On their way while the vector is awaited.
    Bytes16 weights[kTogether<Kind>];
    UNROLL
    for (uint32_t n = 0; n < kTogether<Kind>; ++n)
      weights[n] = load_vector<Cache::read_only>(reinterpret_cast<const Bytes16*>(norm) +
                                                 lane.chunk(first + n));
    if (first == 0) await_first_word(context, residual, lane);
    uint64_t sums[kTogether<Kind>][kChunk];
    if (residual.sums != nullptr) {
      await_words(context, residual, lane, first, sums);
    } else {
      UNROLL
      for (uint32_t n = 0; n < kTogether<Kind>; ++n)
        words_of_row(row, lane.chunk(first + n), residual.broken, sums[n]);
    }
    UNROLL
    for (uint32_t n = 0; n < kTogether<Kind>; ++n)
      read[first + n] =
          normed_chunk(lane.there(first + n), sums[n], weights[n], squares[first + n]);
  }
  const float sum = slice_sum(squares);
  if (lane.place() == 0) shared.squares[lane.sequence()][context.warp()] = sum;
  return dealt<false>(shared.slices, context.warp(), lane, read);
}

/// By all threads, a word each: what the block carries of the vectors, to the next stage's sums. Of
/// a block with rows after its products, since others wait for those first.
template <class Kind>
DEVICE void carry_on(Context& context, const Residual<Kind>& residual) {
  constexpr uint32_t kSequences = Kind::kSequences;
  const BlockShare& mine = residual.carried;
  const uint32_t words = (mine.end - mine.begin) * kChunk * kSequences;
  KEEP_ROLLED
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

/// The factor 1 / rms(x) that products with a sequence's x * norm still lack.
template <class Kind>
DEVICE float scale_of(const Context& context, const NormedShared<Kind>& shared, uint32_t sequence,
                      uint32_t hidden, float epsilon) {
  float sum = 0;
  UNROLL
  for (uint32_t warp = 0; warp < kComputeWarpsMax; ++warp)
    sum += warp < context.warps() ? shared.squares[sequence][warp] : 0;
  return reciprocal_square_root(sum / static_cast<float>(hidden) + epsilon);
}

}  // namespace tokenyard::megakernel
