/// The vectors of a decode step as tensor cores take them: a warp has a slice of their columns,
/// that of all sequences, in registers.
///
/// A row of the products' left side is a sequence. What BF16 cannot say of a value stands in a row
/// of its own: a value is the sum of two BF16 numbers, to 2^-17 of it. So a warp multiplies up to
/// eight sequences in sixteen rows, and a sequence has the same bits in each of them.
#pragma once

#include "decoder/tiles.hpp"
#include "megakernel/tasks/rows.hpp"

namespace tokenyard::megakernel {

inline constexpr uint32_t kChunk = 8;       ///< elements that a lane has side by side
inline constexpr uint32_t kSliceTiles = 8;  ///< tiles of a band that a warp multiplies
inline constexpr uint32_t kSliceColumns = kSliceTiles * kTileColumns;
inline constexpr uint32_t kSliceChunks = kSliceColumns / kChunk;
inline constexpr uint32_t kVectorMax = kSliceColumns * kComputeWarpsMax;  ///< elements

/// Slices of a vector: as many warps of a block have one.
HOST_DEVICE constexpr uint32_t slices_of(uint32_t columns) {
  return (columns + kSliceColumns - 1) / kSliceColumns;
}

/// The words of so many vectors lie such that a warp reads 32 of them side by side: those of some
/// chunks of every sequence.
template <uint32_t kSequences>
struct VectorWords {
  static constexpr uint32_t kTogether = kWarpLanes / kSequences;  ///< chunks

  static HOST_DEVICE uint32_t at(uint32_t sequence, uint32_t chunk, uint32_t element) {
    return (chunk / kTogether * kChunk + element) * kWarpLanes + chunk % kTogether * kSequences +
           sequence;
  }
};
/// With those that stand for no element.
constexpr uint32_t vector_words(uint32_t sequences, uint32_t elements) {
  const uint32_t together = kWarpLanes / sequences;
  return (elements / kChunk + together - 1) / together * kChunk * kWarpLanes;
}

/// What one lane reads of its warp's slice: chunks of one sequence, as many as there are sequences.
template <uint32_t kSequences>
struct LaneChunks {
  static constexpr uint32_t kTogether = VectorWords<kSequences>::kTogether;
  uint32_t first;  ///< of the slice
  uint32_t count;  ///< of the vector

  static DEVICE uint32_t sequence() { return warp::lane() / kTogether; }
  static DEVICE uint32_t place() { return warp::lane() % kTogether; }
  static DEVICE uint32_t in_slice(uint32_t i) { return place() + i * kTogether; }
  DEVICE bool there(uint32_t i) const { return first + in_slice(i) < count; }
  /// Of the vector. Where there is none the last one comes again, so that nobody need branch.
  DEVICE uint32_t chunk(uint32_t i) const { return there(i) ? first + in_slice(i) : count - 1; }
};
template <uint32_t kSequences>
DEVICE LaneChunks<kSequences> chunks_of_lane(uint32_t warp, uint32_t count) {
  return {.first = warp * kSliceChunks, .count = count};
}

/// A chunk: of each pair of values their BF16, and the BF16 of what those lack.
struct SplitChunk {
  Bytes16 high, low;
};
DEVICE uint32_t rest_of(float low, float high, uint32_t pair) {
  return to_bfloat16_pair(low - low_half(pair), high - high_half(pair));
}
DEVICE SplitChunk split(const float (&values)[kChunk]) {
  SplitChunk chunk;
  UNROLL
  for (uint32_t i = 0; i < kChunk / 2; ++i) {
    chunk.high.word[i] = to_bfloat16_pair(values[2 * i], values[2 * i + 1]);
    chunk.low.word[i] = rest_of(values[2 * i], values[2 * i + 1], chunk.high.word[i]);
  }
  return chunk;
}

/// Lane 4 * g + t has of sequence g, if there is one, the chunks t, t + 4, ... of a slice: one of
/// each tile. `exact`: values are BF16, and lack nothing.
template <bool exact>
struct Fragments {
  static constexpr bool kExact = exact;
  Bytes16 high[kSliceTiles];
  Bytes16 low[exact ? 1 : kSliceTiles];
};

/// A slice in shared memory: from lanes that read it to those that multiply.
template <uint32_t kSequences>
struct SliceShared {
  alignas(16) BFloat16 high[kSequences][kSliceColumns], low[kSequences][kSliceColumns];

  DEVICE void put(uint32_t sequence, uint32_t chunk, const SplitChunk& values) {
    *chunk_at(high, sequence, chunk) = values.high;
    *chunk_at(low, sequence, chunk) = values.low;
  }
  DEVICE void put(uint32_t sequence, uint32_t column, float value) {
    const BFloat16 most = to_bfloat16(value);
    high[sequence][column] = most;
    low[sequence][column] = to_bfloat16(value - to_float(most));
  }
  /// Of a slice of so many chunks, which have all been put.
  template <bool exact>
  DEVICE Fragments<exact> fragments(uint32_t chunks) const {
    const uint32_t row = warp::lane() / 4;
    Fragments<exact> mine{};
    UNROLL
    for (uint32_t tile = 0; tile < kSliceTiles; ++tile) {
      const uint32_t chunk = tile * 4 + warp::lane() % 4;
      if (row >= kSequences || chunk >= chunks) continue;
      mine.high[tile] = load_vector(chunk_at(high, row, chunk));
      if constexpr (!exact) mine.low[tile] = load_vector(chunk_at(low, row, chunk));
    }
    return mine;
  }

 private:
  template <class Halves>
  static DEVICE auto* chunk_at(Halves& halves, uint32_t sequence, uint32_t chunk) {
    if constexpr (std::is_const_v<Halves>)
      return reinterpret_cast<const Bytes16*>(halves[sequence]) + chunk;
    else
      return reinterpret_cast<Bytes16*>(halves[sequence]) + chunk;
  }
};

/// Room for the slices of all warps. Of eight sequences each lane reads what it multiplies.
template <uint32_t kSequences>
struct SlicesShared {
  static constexpr bool kNeeded = kSequences < kTileRows;
  SliceShared<kNeeded ? kSequences : 1> of_warp[kNeeded ? kComputeWarpsMax : 1];
};

/// By a warp, whose lanes have read their chunks of its slice: deals them out.
template <bool exact, uint32_t kSequences>
DEVICE Fragments<exact> dealt(SlicesShared<kSequences>& shared, uint32_t warp,
                              const LaneChunks<kSequences>& lane,
                              const SplitChunk (&read)[kSequences]) {
  if constexpr (SlicesShared<kSequences>::kNeeded) {
    SliceShared<kSequences>& slice = shared.of_warp[warp];
    UNROLL
    for (uint32_t i = 0; i < kSequences; ++i) slice.put(lane.sequence(), lane.in_slice(i), read[i]);
    warp::sync();
    return slice.template fragments<exact>(kSliceChunks);
  } else {
    Fragments<exact> mine{};
    UNROLL
    for (uint32_t i = 0; i < kSequences; ++i) {
      mine.high[i] = read[i].high;
      if constexpr (!exact) mine.low[i] = read[i].low;
    }
    return mine;
  }
}

}  // namespace tokenyard::megakernel
