/// The vectors of a decode step in the form of tensor cores' operands: a warp has a slice of the
/// columns of all sequences in registers.
///
/// Each sequence is two rows of the products' left side: a value is the sum of two BF16 numbers,
/// exact to 2^-17 of it, and the second number is in a row of its own. So a warp multiplies up to
/// eight sequences in sixteen rows, and a sequence has the same bits in any row.
#pragma once

#include "decoder/tiles.hpp"
#include "megakernel/tasks/rows.hpp"

namespace tokenyard::megakernel {

inline constexpr uint32_t kChunk = 8;       ///< contiguous elements per lane
inline constexpr uint32_t kSliceTiles = 8;  ///< tiles of a band that a warp multiplies
inline constexpr uint32_t kSliceColumns = kSliceTiles * kTileColumns;
inline constexpr uint32_t kSliceChunks = kSliceColumns / kChunk;
inline constexpr uint32_t kVectorMax = kSliceColumns * kComputeWarpsMax;  ///< elements

/// Returns the number of slices of a vector, each of which one warp has.
TOKENYARD_HOST_DEVICE constexpr uint32_t slices_of(uint32_t columns) {
  return (columns + kSliceColumns - 1) / kSliceColumns;
}

/// Order of the words of kSequences vectors in memory: a warp reads 32 contiguous words, those of
/// some chunks of every sequence.
template <uint32_t kSequences>
struct VectorWords {
  static constexpr uint32_t kTogether = kWarpLanes / kSequences;  ///< chunks

  static TOKENYARD_HOST_DEVICE uint32_t at(uint32_t sequence, uint32_t chunk, uint32_t element) {
    return (chunk / kTogether * kChunk + element) * kWarpLanes + chunk % kTogether * kSequences +
           sequence;
  }
};
/// Returns the number of words, padding included.
constexpr uint32_t vector_words(uint32_t sequences, uint32_t elements) {
  const uint32_t together = kWarpLanes / sequences;
  return (elements / kChunk + together - 1) / together * kChunk * kWarpLanes;
}

/// The chunks of its warp's slice that one lane reads: of one sequence, and as many as there are
/// sequences.
template <uint32_t kSequences>
struct LaneChunks {
  static constexpr uint32_t kTogether = VectorWords<kSequences>::kTogether;
  uint32_t first;  ///< first chunk of the slice
  uint32_t count;  ///< chunks of the vector

  static TOKENYARD_DEVICE uint32_t sequence() { return warp::lane() / kTogether; }
  static TOKENYARD_DEVICE uint32_t place() { return warp::lane() % kTogether; }
  static TOKENYARD_DEVICE uint32_t in_slice(uint32_t i) { return place() + i * kTogether; }
  TOKENYARD_DEVICE bool there(uint32_t i) const { return first + in_slice(i) < count; }
  /// Returns the index in the vector; past its end that of the last chunk, which avoids branches.
  TOKENYARD_DEVICE uint32_t chunk(uint32_t i) const {
    return there(i) ? first + in_slice(i) : count - 1;
  }
};
template <uint32_t kSequences>
TOKENYARD_DEVICE LaneChunks<kSequences> chunks_of_lane(uint32_t warp, uint32_t count) {
  return {.first = warp * kSliceChunks, .count = count};
}

/// A chunk of values as BF16, and the BF16 of the remainders.
struct SplitChunk {
  Bytes16 high, low;
};
TOKENYARD_DEVICE uint32_t rest_of(float low, float high, uint32_t pair) {
  return to_bfloat16_pair(low - low_half(pair), high - high_half(pair));
}
TOKENYARD_DEVICE SplitChunk split(const float (&values)[kChunk]) {
  SplitChunk chunk;
  TOKENYARD_UNROLL
  for (uint32_t i = 0; i < kChunk / 2; ++i) {
    chunk.high.word[i] = to_bfloat16_pair(values[2 * i], values[2 * i + 1]);
    chunk.low.word[i] = rest_of(values[2 * i], values[2 * i + 1], chunk.high.word[i]);
  }
  return chunk;
}

/// Operands of a warp: lane 4 * g + t has chunks t, t + 4, ... of a slice of sequence g, if it
/// exists: one per tile. `exact`: values are BF16 and have no remainder.
template <bool exact>
struct Fragments {
  static constexpr bool kExact = exact;
  Bytes16 high[kSliceTiles];
  Bytes16 low[exact ? 1 : kSliceTiles];
};

/// A slice in shared memory, which passes it from the lanes that read it to those that multiply.
template <uint32_t kSequences>
struct SliceShared {
  alignas(16) BFloat16 high[kSequences][kSliceColumns], low[kSequences][kSliceColumns];

  TOKENYARD_DEVICE void put(uint32_t sequence, uint32_t chunk, const SplitChunk& values) {
    *chunk_at(high, sequence, chunk) = values.high;
    *chunk_at(low, sequence, chunk) = values.low;
  }
  TOKENYARD_DEVICE void put(uint32_t sequence, uint32_t column, float value) {
    const BFloat16 most = to_bfloat16(value);
    high[sequence][column] = most;
    low[sequence][column] = to_bfloat16(value - to_float(most));
  }
  /// Returns the operands of a slice of `chunks` chunks, all of which have been put.
  template <bool exact>
  TOKENYARD_DEVICE Fragments<exact> fragments(uint32_t chunks) const {
    const uint32_t row = warp::lane() / 4;
    Fragments<exact> mine{};
    TOKENYARD_UNROLL
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
  static TOKENYARD_DEVICE auto* chunk_at(Halves& halves, uint32_t sequence, uint32_t chunk) {
    if constexpr (std::is_const_v<Halves>)
      return reinterpret_cast<const Bytes16*>(halves[sequence]) + chunk;
    else
      return reinterpret_cast<Bytes16*>(halves[sequence]) + chunk;
  }
};

/// The slices of all warps. Not needed for eight sequences, where each lane reads what it
/// multiplies.
template <uint32_t kSequences>
struct SlicesShared {
  static constexpr bool kNeeded = kSequences < kTileRows;
  SliceShared<kNeeded ? kSequences : 1> of_warp[kNeeded ? kComputeWarpsMax : 1];
};

/// Redistributes, by a warp, the chunks that its lanes have read to the lanes that multiply them.
template <bool exact, uint32_t kSequences>
TOKENYARD_DEVICE Fragments<exact> dealt(SlicesShared<kSequences>& shared, uint32_t warp,
                                        const LaneChunks<kSequences>& lane,
                                        const SplitChunk (&read)[kSequences]) {
  if constexpr (SlicesShared<kSequences>::kNeeded) {
    SliceShared<kSequences>& slice = shared.of_warp[warp];
    TOKENYARD_UNROLL
    for (uint32_t i = 0; i < kSequences; ++i) slice.put(lane.sequence(), lane.in_slice(i), read[i]);
    warp::sync();
    return slice.template fragments<exact>(kSliceChunks);
  } else {
    Fragments<exact> mine{};
    TOKENYARD_UNROLL
    for (uint32_t i = 0; i < kSequences; ++i) {
      mine.high[i] = read[i].high;
      if constexpr (!exact) mine.low[i] = read[i].low;
    }
    return mine;
  }
}

}  // namespace tokenyard::megakernel
