/// Products of streamed rows with one vector, which all warps read from shared memory.
///
/// The vector goes by chunks of eight elements: lane l takes chunks l, l + 32, ... A unit is one
/// row, or a piece of one, of as many columns as the vector has. Loops over chunks stay rolled: a
/// GPU fetches code from as far away as data, and each stage's was last used a layer ago.
#pragma once

#include "megakernel/context.hpp"
#include "megakernel/tasks/rows.hpp"

namespace tokenyard::megakernel {

inline constexpr uint32_t kChunk = 8;  ///< elements
inline constexpr uint32_t kHeldColumnsMax = 2048;
inline constexpr uint32_t kHeldChunks = kHeldColumnsMax / kChunk / kWarpLanes;  ///< of a lane

/// In halves of chunks, so that lanes which read neighbours meet no bank twice.
struct HeldInput {
  Bytes16 half[2 * kHeldChunks][kWarpLanes];

  DEVICE void put(uint32_t chunk, const float* values) {
    half[chunk / kWarpLanes * 2][chunk % kWarpLanes] = of(values);
    half[chunk / kWarpLanes * 2 + 1][chunk % kWarpLanes] = of(values + kChunk / 2);
  }
  DEVICE void get(uint32_t chunk, float (&values)[kChunk]) const {
    const Bytes16* const first = &half[chunk / kWarpLanes * 2][chunk % kWarpLanes];
    const Bytes16 low = load_vector(first), high = load_vector(first + kWarpLanes);
    UNROLL
    for (uint32_t e = 0; e < kChunk / 2; ++e) {
      values[e] = std::bit_cast<float>(low.word[e]);
      values[e + kChunk / 2] = std::bit_cast<float>(high.word[e]);
    }
  }

 private:
  static DEVICE Bytes16 of(const float* four) {
    return {{std::bit_cast<uint32_t>(four[0]), std::bit_cast<uint32_t>(four[1]),
             std::bit_cast<uint32_t>(four[2]), std::bit_cast<uint32_t>(four[3])}};
  }
};

/// Products of the stream's next `kRows` units with a vector of so many chunks, in every lane.
template <uint32_t kRows>
DEVICE void held_products(Context& context, const HeldInput& held, uint32_t chunks,
                          float (&products)[kRows]) {
  const Bytes16* units[kRows];
  UNROLL
  for (uint32_t row = 0; row < kRows; ++row)
    units[row] = reinterpret_cast<const Bytes16*>(context.next_unit(row));
  float sums[kRows][4] = {};
  KEEP_ROLLED
  for (uint32_t chunk = warp::lane(); chunk < chunks; chunk += kWarpLanes) {
    float x[kChunk];
    held.get(chunk, x);
    UNROLL
    for (uint32_t row = 0; row < kRows; ++row)
      add_products(load_vector(units[row] + chunk), x, sums[row]);
  }
  UNROLL
  for (uint32_t row = 0; row < kRows; ++row) context.release_unit();
  UNROLL
  for (uint32_t row = 0; row < kRows; ++row) products[row] = warp_sum(total(sums[row]));
}

/// By a warp: calls take(i, product) for the next `count` units, `kBatch` of them at a time where
/// the ring has room for as many.
template <uint32_t kBatch, class Take>
DEVICE void for_each_product(Context& context, const HeldInput& held, uint32_t chunks,
                             uint32_t count, Take take) {
  uint32_t i = 0;
  if (context.ring_units() >= kBatch) {
    KEEP_ROLLED
    for (; i + kBatch <= count; i += kBatch) {
      float products[kBatch];
      held_products<kBatch>(context, held, chunks, products);
      UNROLL
      for (uint32_t n = 0; n < kBatch; ++n) take(i + n, products[n]);
    }
  }
  KEEP_ROLLED
  for (; i < count; ++i) {
    float product[1];
    held_products<1>(context, held, chunks, product);
    take(i, product[0]);
  }
}

}  // namespace tokenyard::megakernel
