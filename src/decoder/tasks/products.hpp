/// Products of streamed, tiled weights (tiles.hpp) with the vectors of all sequences.
///
/// A unit is one band of a warp's slice. If a vector has several slices, each warp computes the
/// sums of its own, and the block adds them in slice order. So a product has the same bits
/// whichever threads compute it and whatever is computed beside it.
#pragma once

#include "decoder/tasks/slices.hpp"

namespace tokenyard::megakernel {

/// Products of two neighbouring rows, the first one even.
struct alignas(8) RowPair {
  float even, odd;
};
inline constexpr uint32_t kPairs = kTileRows / 2;  ///< per band

/// Adds, by a warp, the products of a chunk of each lane's row of the left side, given as the sum
/// of two, with a tile. Two chains of sums, so that a product need not wait for the previous one.
TOKENYARD_DEVICE void multiply_split(float (&sums)[2][4], const Bytes16& most, const Bytes16& rest,
                                     const Bytes16& tile) {
  TOKENYARD_UNROLL
  for (uint32_t half = 0; half < 2; ++half) {
    const uint32_t at = 2 * half;
    const uint32_t a[4] = {most.word[at], rest.word[at], most.word[at + 1], rest.word[at + 1]};
    const uint32_t b[2] = {tile.word[at], tile.word[at + 1]};
    warp::multiply_add(sums[half], a, b);
  }
}
/// Returns the total of both chains for a row, from its most and its rest.
TOKENYARD_DEVICE RowPair pair_of(const float (&sums)[2][4]) {
  return {(sums[0][0] + sums[1][0]) + (sums[0][2] + sums[1][2]),
          (sums[0][1] + sums[1][1]) + (sums[0][3] + sums[1][3])};
}

/// Returns bands [0, bands) of a warp's slice of the matrix at `tiles`, whose bands are
/// `band_tiles` tiles apart.
TOKENYARD_DEVICE StreamedRows slice_of_bands(const BFloat16* tiles, uint32_t bands,
                                             uint32_t band_tiles, uint32_t columns, uint32_t warp) {
  const uint32_t all = tiles_of(columns), first = warp * kSliceTiles;
  const uint32_t left = first < all ? all - first : 0;
  const uint32_t bytes = (left < kSliceTiles ? left : kSliceTiles) * kTileBytes;
  return {.from = reinterpret_cast<const std::byte*>(tiles) + size_t{first} * kTileBytes,
          .row_stride = uint64_t{band_tiles} * kTileBytes,
          .rows = bytes > 0 ? bands : 0,
          .row_bytes = bytes,
          .piece_bytes = bytes};
}
/// Returns the number of tiles per band of a warp's slice.
TOKENYARD_DEVICE uint32_t tiles_of_slice(uint32_t columns, uint32_t warp) {
  const uint32_t all = tiles_of(columns), first = warp * kSliceTiles;
  const uint32_t left = first < all ? all - first : 0;
  return left < kSliceTiles ? left : kSliceTiles;
}

/// Returns the products of the warp's next unit, of `tiles` tiles. Lane 4 * g + t gets those of
/// sequence g with rows 2 * t and 2 * t + 1.
template <bool exact>
TOKENYARD_DEVICE RowPair band_product(Context& context, const Fragments<exact>& x, uint32_t tiles) {
  const std::byte* unit[1];
  const bool come = context.next_units(unit);
  Bytes16 weights[kSliceTiles] = {};
  if (come) {
    const Bytes16* const mine = reinterpret_cast<const Bytes16*>(unit[0]) + warp::lane();
    // Unconditional loads, all at once: with a condition per load, each would wait for the previous
    // one.
    TOKENYARD_UNROLL
    for (uint32_t tile = 0; tile < kSliceTiles; ++tile)
      weights[tile] = load_vector(mine + (tile < tiles ? tile : 0) * kWarpLanes);
  }
  context.release_unit();
  float sums[2][4] = {};
  TOKENYARD_UNROLL
  for (uint32_t tile = 0; tile < kSliceTiles; ++tile)
    if (tile < tiles)
      multiply_split(sums, x.high[tile], exact ? Bytes16{} : x.low[exact ? 0 : tile],
                     weights[tile]);
  return pair_of(sums);
}

/// The warps' sums over their slices. There are two halves, so that no warp waits until all have
/// read one.
template <uint32_t kSequences>
struct PartialProducts {
  static constexpr uint32_t kBands = kSequences < 4 ? 16 : 32 / kSequences;  ///< bands at a time
  RowPair of[2][kBands][kComputeWarpsMax][kSequences][kPairs];
};

/// Returns the sequence whose products this thread takes.
template <uint32_t kSequences>
TOKENYARD_DEVICE uint32_t product_sequence(const Context& context) {
  return context.thread() % (kSequences * kPairs) / kPairs;
}

/// Calls take(row, sequence, RowPair) for each pair of rows of `bands` bands, in one thread each,
/// always with that thread's product_sequence. Called by all threads, which meet before the first
/// call of `take`.
template <uint32_t kSequences, bool exact, class Take>
TOKENYARD_DEVICE void for_each_product(Context& context, PartialProducts<kSequences>& partial,
                                       const Fragments<exact>& x, uint32_t columns, uint32_t bands,
                                       Take take) {
  constexpr uint32_t kBands = PartialProducts<kSequences>::kBands, kOfBand = kSequences * kPairs;
  static_assert(kWarpLanes % kOfBand == 0);
  const uint32_t tiles = tiles_of_slice(columns, context.warp()), slices = slices_of(columns);
  const uint32_t sequence = product_sequence<kSequences>(context);
  const uint32_t pair = context.thread() % kPairs;
  uint32_t half = 0;
  TOKENYARD_KEEP_ROLLED
  for (uint32_t first = 0; first < bands; first += kBands) {
    const uint32_t here = bands - first < kBands ? bands - first : kBands;
    TOKENYARD_KEEP_ROLLED
    for (uint32_t band = 0; tiles > 0 && band < here; ++band) {
      const RowPair products = band_product(context, x, tiles);
      if (warp::lane() / kPairs < kSequences)
        partial.of[half][band][context.warp()][warp::lane() / kPairs][warp::lane() % kPairs] =
            products;
    }
    context.sync();
    TOKENYARD_KEEP_ROLLED
    for (uint32_t i = context.thread(); i < here * kOfBand; i += context.threads()) {
      const auto& of_slices = partial.of[half][i / kOfBand];
      RowPair sum = of_slices[0][sequence][pair];
      TOKENYARD_UNROLL
      for (uint32_t slice = 1; slice < kComputeWarpsMax; ++slice) {
        const RowPair more = of_slices[slice < slices ? slice : 0][sequence][pair];
        sum.even = slice < slices ? sum.even + more.even : sum.even;
        sum.odd = slice < slices ? sum.odd + more.odd : sum.odd;
      }
      take((first + i / kOfBand) * kTileRows + 2 * pair, sequence, sum);
    }
    half ^= 1;
  }
}

}  // namespace tokenyard::megakernel
