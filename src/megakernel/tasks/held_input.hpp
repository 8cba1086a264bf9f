/// Products of streamed rows with one vector that the lanes of every warp hold in registers.
///
/// The vector goes by chunks of eight elements: lane l holds chunks l, l + 32, ... A unit is one
/// row, or a piece of one, of as many columns as the vector has.
#pragma once

#include "megakernel/context.hpp"
#include "megakernel/tasks/rows.hpp"

namespace tokenyard::megakernel {

inline constexpr uint32_t kChunk = 8;  ///< elements
inline constexpr uint32_t kHeldColumnsMax = 2048;
inline constexpr uint32_t kHeldChunks = kHeldColumnsMax / kChunk / kWarpLanes;  ///< of a lane

struct HeldInput {
  float x[kHeldChunks * kChunk];
  uint32_t chunks;  ///< of the vector
};

/// A vector on its way from the threads that made it to the lanes of all warps: halves of chunks,
/// so that lanes which read neighbours meet no bank twice.
struct HeldShared {
  Bytes16 half[2 * kHeldChunks][kWarpLanes];

  DEVICE void put(uint32_t chunk, const float* values) {
    half[chunk / kWarpLanes * 2][chunk % kWarpLanes] = of(values);
    half[chunk / kWarpLanes * 2 + 1][chunk % kWarpLanes] = of(values + kChunk / 2);
  }
  DEVICE void get(HeldInput& held) const {
    UNROLL
    for (uint32_t i = 0; i < 2 * kHeldChunks; ++i) {
      const bool there = i / 2 * kWarpLanes + warp::lane() < held.chunks;
      const Bytes16 four = there ? half[i][warp::lane()] : Bytes16{};
      UNROLL
      for (uint32_t e = 0; e < 4; ++e) held.x[i * 4 + e] = std::bit_cast<float>(four.word[e]);
    }
  }

 private:
  static DEVICE Bytes16 of(const float* four) {
    return {{std::bit_cast<uint32_t>(four[0]), std::bit_cast<uint32_t>(four[1]),
             std::bit_cast<uint32_t>(four[2]), std::bit_cast<uint32_t>(four[3])}};
  }
};

/// Adds chunks [begin, end) of every lane. A vector shorter than the lanes can hold ends in zeros,
/// for which they take its last chunk's weights again: one path for all lengths, since a GPU
/// fetches code from as far away as data.
template <uint32_t begin, uint32_t end, uint32_t kRows>
DEVICE void add_held(const HeldInput& held, const Bytes16* const (&units)[kRows],
                     float (&sums)[kRows][4]) {
  UNROLL
  for (uint32_t i = begin; i < end; ++i) {
    const uint32_t mine = i * kWarpLanes + warp::lane();
    const uint32_t chunk = mine < held.chunks ? mine : held.chunks - 1;
    UNROLL
    for (uint32_t row = 0; row < kRows; ++row)
      add_products(load_vector(units[row] + chunk), held.x + i * kChunk, sums[row]);
  }
}

/// Products of the stream's next `kRows` units with x, in every lane.
template <uint32_t kRows>
DEVICE void held_products(Context& context, const HeldInput& held, float (&products)[kRows]) {
  const Bytes16* units[kRows];
  UNROLL
  for (uint32_t row = 0; row < kRows; ++row)
    units[row] = reinterpret_cast<const Bytes16*>(context.next_unit(row));
  float sums[kRows][4] = {};
  add_held<0, 1>(held, units, sums);
  if (held.chunks > kWarpLanes) add_held<1, kHeldChunks>(held, units, sums);
  UNROLL
  for (uint32_t row = 0; row < kRows; ++row) context.release_unit();
  UNROLL
  for (uint32_t row = 0; row < kRows; ++row) products[row] = warp_sum(total(sums[row]));
}

/// By a warp: calls take(i, product) for the next `count` units, `kBatch` of them at a time where
/// the ring has room for as many.
template <uint32_t kBatch, class Take>
DEVICE void for_each_product(Context& context, const HeldInput& held, uint32_t count, Take take) {
  uint32_t i = 0;
  if (context.ring_units() >= kBatch) {
    KEEP_ROLLED
    for (; i + kBatch <= count; i += kBatch) {
      float products[kBatch];
      held_products<kBatch>(context, held, products);
      UNROLL
      for (uint32_t n = 0; n < kBatch; ++n) take(i + n, products[n]);
    }
  }
  KEEP_ROLLED
  for (; i < count; ++i) {
    float product[1];
    held_products<1>(context, held, product);
    take(i, product[0]);
  }
}

}  // namespace tokenyard::megakernel
