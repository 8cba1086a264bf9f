/// The vector that runs through a model's layers, as counted sums: each stage has sums of its own,
/// to which all blocks add their parts of a product and one block the vector before it.
#pragma once

#include "megakernel/tasks/dense_kind.hpp"
#include "megakernel/tasks/held_input.hpp"
#include "megakernel/tasks/words.hpp"

namespace tokenyard::megakernel {

/// Chunks of the vector that one block has to do with: neighbours.
struct ChunkShare {
  uint32_t begin, end;
};

/// Where a block reads the vector, and which part of it the block carries on.
struct Residual {
  const uint64_t* sums;  ///< [hidden], in the order of word_at
  uint32_t terms;        ///< of each sum
  Event event;           ///< that they carry
  const BFloat16* row;   ///< of a table, instead of sums, or null
  uint64_t* carry_to;    ///< sums of the next stage, or null
  ChunkShare carried;    ///< by this block
  uint32_t* broken;
  uint32_t hidden;

  DEVICE uint32_t chunks() const { return hidden / kChunk; }
  DEVICE bool carries(uint32_t chunk) const {
    return carry_to != nullptr && chunk >= carried.begin && chunk < carried.end;
  }
};

struct NormedShared {
  HeldInput x;
  alignas(16) float warp_squares[kComputeWarpsMax];
};

/// A chunk of the vector. `units` of a sum are its fixed point, without the count.
struct VectorChunk {
  float values[kChunk];
  int64_t units[kChunk];
};

/// By each thread, for its chunk.
template <class Kind>
DEVICE VectorChunk read_chunk(Context& context, const Residual& residual, uint32_t chunk) {
  VectorChunk read;
  if (residual.row != nullptr) {
    const Bytes16 row = load_vector(reinterpret_cast<const Bytes16*>(residual.row) + chunk);
    UNROLL
    for (uint32_t pair = 0; pair < kChunk / 2; ++pair) {
      read.values[2 * pair] = low_half(row.word[pair]);
      read.values[2 * pair + 1] = high_half(row.word[pair]);
    }
    UNROLL
    for (uint32_t i = 0; i < kChunk; ++i)
      read.units[i] = units_of_term(read.values[i], residual.broken);
    return read;
  }
  uint64_t sums[kChunk];
  context.await_carried(residual.event, [&] {
    // The terms counted in all of them at once.
    uint32_t missing = 0;
    UNROLL
    for (uint32_t i = 0; i < kChunk; ++i) {
      sums[i] = load<Order::relaxed, Kind::kScope>(residual.sums + i * residual.chunks() + chunk);
      missing |= terms_of_sum(sums[i]) ^ residual.terms;
    }
    return missing == 0;
  });
  UNROLL
  for (uint32_t i = 0; i < kChunk; ++i) {
    read.units[i] = units_of_sum(sums[i]);
    read.values[i] = sum_value(sums[i]);
  }
  return read;
}

/// By each warp: until one word of it has come. Were all lanes to poll all words, the polls would
/// be in the way of what they wait for.
template <class Kind>
DEVICE void await_first_word(Context& context, const Residual& residual) {
  const uint32_t chunk = context.warp() * kWarpLanes;
  if (residual.row == nullptr && warp::elect() && chunk < residual.chunks())
    context.await_carried(residual.event, [&] {
      return terms_of_sum(load<Order::relaxed, Kind::kScope>(residual.sums + chunk)) ==
             residual.terms;
    });
  warp::sync();
}

/// By all threads: leaves x * norm in shared memory, and returns the factor 1 / rms(x) that
/// products with it still lack.
template <class Kind>
DEVICE float normed_input(Context& context, NormedShared& shared, const Residual& residual,
                          const BFloat16* norm, float epsilon) {
  float squares = 0;
  const auto norm_of = [&](uint32_t chunk) {
    return load_vector<Cache::read_only>(reinterpret_cast<const Bytes16*>(norm) + chunk);
  };
  // Most threads have one chunk: its weights are on their way while the vector is awaited.
  const bool any = context.thread() < residual.chunks();
  const Bytes16 first = any ? norm_of(context.thread()) : Bytes16{};
  await_first_word<Kind>(context, residual);
  KEEP_ROLLED
  for (uint32_t chunk = context.thread(); chunk < residual.chunks(); chunk += context.threads()) {
    const Bytes16 weights = chunk == context.thread() ? first : norm_of(chunk);
    const VectorChunk read = read_chunk<Kind>(context, residual, chunk);
    float weighted[kChunk];
    UNROLL
    for (uint32_t pair = 0; pair < kChunk / 2; ++pair) {
      squares += read.values[2 * pair] * read.values[2 * pair];
      squares += read.values[2 * pair + 1] * read.values[2 * pair + 1];
      weighted[2 * pair] = read.values[2 * pair] * low_half(weights.word[pair]);
      weighted[2 * pair + 1] = read.values[2 * pair + 1] * high_half(weights.word[pair]);
    }
    shared.x.put(chunk, weighted);
    if (residual.carries(chunk)) {
      UNROLL
      for (uint32_t i = 0; i < kChunk; ++i)
        add_units<Kind::kScope>(Peer<uint64_t>(residual.carry_to + i * residual.chunks() + chunk),
                                units_carried(read.units[i], residual.broken));
    }
  }
  squares = warp_sum(squares);
  if (warp::elect()) shared.warp_squares[context.warp()] = squares;
  context.sync();
  float sum = 0;
  UNROLL
  for (uint32_t warp = 0; warp < kComputeWarpsMax; ++warp)
    sum += warp < context.warps() ? shared.warp_squares[warp] : 0;
  return reciprocal_square_root(sum / static_cast<float>(residual.hidden) + epsilon);
}

}  // namespace tokenyard::megakernel
