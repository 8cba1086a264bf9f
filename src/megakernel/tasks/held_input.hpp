/// Products of streamed rows with one vector, which all warps read from shared memory.
///
/// The vector goes by chunks of eight elements: lane l takes chunks l, l + 32, ... A unit is one
/// row, or a piece of one, of as many columns as the vector has. A stage of few rows reads the
/// vector from there for each of them, in loops that stay rolled: a GPU fetches code from as far
/// away as data, and each stage's was last used a layer ago.
#pragma once

#include "megakernel/context.hpp"
#include "megakernel/tasks/rows.hpp"
#include "megakernel/tasks/warp_sums.hpp"

namespace tokenyard::megakernel {

inline constexpr uint32_t kChunk = 8;  ///< elements
inline constexpr uint32_t kHeldColumnsMax = 2048;
inline constexpr uint32_t kHeldChunks = kHeldColumnsMax / kChunk / kWarpLanes;  ///< of a lane

/// In halves of chunks, so that lanes which read neighbours meet no bank twice.
struct HeldInput {
  Bytes16 half[2 * kHeldChunks][kWarpLanes];

  DEVICE void put(uint32_t chunk, const float (&values)[kChunk]) {
    half[chunk / kWarpLanes * 2][chunk % kWarpLanes] =
        of(values[0], values[1], values[2], values[3]);
    half[chunk / kWarpLanes * 2 + 1][chunk % kWarpLanes] =
        of(values[4], values[5], values[6], values[7]);
  }
  /// Calls body(chunk, values) for each chunk of this lane, in a loop that stays rolled.
  template <class Body>
  DEVICE void for_each_chunk(uint32_t chunks, Body body) const {
    KEEP_ROLLED
    for (uint32_t chunk = warp::lane(); chunk < chunks; chunk += kWarpLanes) {
      float values[kChunk];
      get(chunk, values);
      body(chunk, values);
    }
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
  static DEVICE Bytes16 of(float a, float b, float c, float d) {
    return {{std::bit_cast<uint32_t>(a), std::bit_cast<uint32_t>(b), std::bit_cast<uint32_t>(c),
             std::bit_cast<uint32_t>(d)}};
  }
};

/// Those of all sequences, or the one that there is.
template <uint32_t kSequences>
DEVICE const auto& vectors_of(const HeldInput (&held)[kSequences]) {
  if constexpr (kSequences == 1)
    return held[0];
  else
    return held;
}

/// The same in registers, a lane's chunks each: for stages of so many rows that the code of a loop
/// unrolled is fetched in no time (logits on an H200: 124 us instead of 145).
class RegisterInput {
 public:
  DEVICE RegisterInput(const HeldInput& held, uint32_t chunks) {
    UNROLL
    for (uint32_t i = 0; i < kHeldChunks; ++i) {
      held.get(chunk_of(i, chunks), values_[i]);
      UNROLL
      for (uint32_t e = 0; e < kChunk; ++e)
        if (i * kWarpLanes + warp::lane() >= chunks) values_[i][e] = 0;
    }
  }
  /// As HeldInput::for_each_chunk. A vector shorter than the lanes can hold ends in zeros, for
  /// which the last chunk comes again.
  template <class Body>
  DEVICE void for_each_chunk(uint32_t chunks, Body body) const {
    UNROLL
    for (uint32_t i = 0; i < kHeldChunks; ++i) body(chunk_of(i, chunks), values_[i]);
  }

 private:
  DEVICE static uint32_t chunk_of(uint32_t i, uint32_t chunks) {
    const uint32_t mine = i * kWarpLanes + warp::lane();
    return mine < chunks ? mine : chunks - 1;
  }
  float values_[kHeldChunks][kChunk];
};

/// Of the products of a chunk with one row: as many sums as let multiply-adds follow one another
/// without waiting. One number for all kernels, since it decides how a product is rounded.
inline constexpr uint32_t kPartialSums = 2;

DEVICE float total_of_row(const float (&sums)[kPartialSums]) {
  float all = sums[0];
  UNROLL
  for (uint32_t i = 1; i < kPartialSums; ++i) all += sums[i];
  return all;
}
/// Adds the products of a chunk of weights with one of the vector.
DEVICE void add_chunk(const float (&weights)[kChunk], const float (&x)[kChunk],
                      float (&sums)[kPartialSums]) {
  UNROLL
  for (uint32_t e = 0; e < kChunk; ++e) sums[e % kPartialSums] += weights[e] * x[e];
}

/// Products of the stream's next `kRows` units with a vector of so many chunks, in every lane.
template <uint32_t kRows, class Vector>
DEVICE void held_products(Context& context, const Vector& vector, uint32_t chunks,
                          float (&products)[kRows]) {
  const std::byte* units[kRows];
  const bool come = context.next_units(units);
  float sums[kRows][kPartialSums] = {};
  if (come)
    vector.for_each_chunk(chunks, [&](uint32_t chunk, const float(&x)[kChunk]) {
      UNROLL
      for (uint32_t row = 0; row < kRows; ++row) {
        float weights[kChunk];
        unpack(load_vector(reinterpret_cast<const Bytes16*>(units[row]) + chunk), weights);
        add_chunk(weights, x, sums[row]);
      }
    });
  context.release_units<kRows>();
  UNROLL
  for (uint32_t row = 0; row < kRows; ++row) products[row] = warp_sum(total_of_row(sums[row]));
}

/// A product that a lane has, as `sharers` lanes have it: of them it is number `share`.
struct LaneProduct {
  uint32_t row;  ///< of those that the warp streams
  uint32_t sequence;
  float value;
  uint32_t share, sharers;
};

/// By a warp: the stream's next `kRows` units, each with the vectors of all sequences.
template <uint32_t kRows, uint32_t kSequences>
DEVICE LaneProduct batched_product(Context& context, const HeldInput (&vectors)[kSequences],
                                   uint32_t chunks, uint32_t first_row) {
  constexpr uint32_t kSharers = kWarpLanes / (kRows * kSequences);
  const std::byte* units[kRows];
  const bool come = context.next_units(units);
  float sums[kRows * kSequences][kPartialSums] = {};
  KEEP_ROLLED
  for (uint32_t chunk = warp::lane(); come && chunk < chunks; chunk += kWarpLanes) {
    float weights[kRows][kChunk];
    UNROLL
    for (uint32_t row = 0; row < kRows; ++row)
      unpack(load_vector(reinterpret_cast<const Bytes16*>(units[row]) + chunk), weights[row]);
    UNROLL
    for (uint32_t s = 0; s < kSequences; ++s) {
      float x[kChunk];
      vectors[s].get(chunk, x);
      UNROLL
      for (uint32_t row = 0; row < kRows; ++row)
        add_chunk(weights[row], x, sums[row * kSequences + s]);
    }
  }
  context.release_units<kRows>();
  float products[kRows * kSequences];
  UNROLL
  for (uint32_t i = 0; i < kRows * kSequences; ++i) products[i] = total_of_row(sums[i]);
  const uint32_t index = warp::lane() / kSharers;
  return {.row = first_row + index / kSequences,
          .sequence = index % kSequences,
          .value = scattered_sum(products),
          .share = warp::lane() % kSharers,
          .sharers = kSharers};
}

/// By a warp: take(product) by every lane with a product of its own, for the next units of all that
/// are left from `i` on, as many at a time as `kRows`.
template <uint32_t kRows, uint32_t kSequences, class Take>
DEVICE void take_batches(Context& context, const HeldInput (&vectors)[kSequences], uint32_t chunks,
                         uint32_t count, uint32_t& i, Take take) {
  if (context.ring_units() < kRows) return;
  KEEP_ROLLED
  for (; i + kRows <= count; i += kRows)
    take(batched_product<kRows, kSequences>(context, vectors, chunks, i));
}

/// By a warp: calls take(LaneProduct) in all lanes for the next `count` units, several at a time
/// where the ring has room for as many. One sequence: kBatch at a time, in all lanes the same.
/// Several: each lane has products of its own, and rows come by fours, by twos and alone, but alone
/// only if they are not in `pairs` (then a ring has room for two).
template <uint32_t kBatch, bool pairs = false, class Vector, class Take>
DEVICE void for_each_product(Context& context, const Vector& vector, uint32_t chunks,
                             uint32_t count, Take take) {
  uint32_t i = 0;
  if constexpr (requires { vector[1]; }) {
    take_batches<4>(context, vector, chunks, count, i, take);
    take_batches<2>(context, vector, chunks, count, i, take);
    if constexpr (!pairs) take_batches<1>(context, vector, chunks, count, i, take);
  } else {
    const auto take_row = [&](uint32_t row, float product) {
      take(LaneProduct{.row = row,
                       .sequence = 0,
                       .value = product,
                       .share = warp::lane(),
                       .sharers = kWarpLanes});
    };
    if (context.ring_units() >= kBatch) {
      KEEP_ROLLED
      for (; i + kBatch <= count; i += kBatch) {
        float products[kBatch];
        held_products<kBatch>(context, vector, chunks, products);
        UNROLL
        for (uint32_t n = 0; n < kBatch; ++n) take_row(i + n, products[n]);
      }
    }
    KEEP_ROLLED
    for (; i < count; ++i) {
      float product[1];
      held_products<1>(context, vector, chunks, product);
      take_row(i, product[0]);
    }
  }
}

}  // namespace tokenyard::megakernel
