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

/// Where a block reads the vectors of all sequences, and which part of them the block carries on.
template <class Kind>
struct Residual {
  const uint64_t* sums;                    ///< [sequences][hidden], each in the order of word_at
  uint32_t terms;                          ///< of each sum
  Event event;                             ///< that they carry
  const BFloat16* rows[Kind::kSequences];  ///< of a table, instead of sums, or null
  uint64_t* carry_to;                      ///< [sequences][hidden] sums of the next stage, or null
  ChunkShare carried;                      ///< by this block
  uint32_t* broken;
  uint32_t hidden;

  DEVICE uint32_t chunks() const { return hidden / kChunk; }
  DEVICE bool carries(uint32_t chunk) const {
    return carry_to != nullptr && chunk >= carried.begin && chunk < carried.end;
  }
  /// Of the word of an element of a chunk.
  DEVICE size_t word(uint32_t sequence, uint32_t chunk, uint32_t element) const {
    return size_t{sequence} * hidden + element * chunks() + chunk;
  }
};

template <class Kind>
struct NormedShared {
  HeldInput x[Kind::kSequences];
  alignas(16) float warp_squares[Kind::kSequences][kComputeWarpsMax];
};

/// Sequences whose words a thread asks for at once.
template <class Kind>
inline constexpr uint32_t kTogether = Kind::kSequences < 4 ? Kind::kSequences : 4;

/// By each thread, for its chunk of the sequences from `first` on: words as they are.
template <class Kind>
DEVICE void await_words(Context& context, const Residual<Kind>& residual, uint32_t first,
                        uint32_t chunk, uint64_t (&sums)[kTogether<Kind>][kChunk]) {
  context.await_carried(residual.event, [&] {
    // The terms counted in all of them at once.
    uint32_t missing = 0;
    UNROLL
    for (uint32_t s = 0; s < kTogether<Kind>; ++s) {
      UNROLL
      for (uint32_t i = 0; i < kChunk; ++i) {
        sums[s][i] =
            load<Order::relaxed, Kind::kScope>(residual.sums + residual.word(first + s, chunk, i));
        missing |= terms_of_sum(sums[s][i]) ^ residual.terms;
      }
    }
    return missing == 0;
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

/// By each warp: until one word of it has come. Were all lanes to poll all words, the polls would
/// be in the way of what they wait for.
template <class Kind>
DEVICE void await_first_word(Context& context, const Residual<Kind>& residual) {
  const uint32_t chunk = context.warp() * kWarpLanes;
  if (residual.rows[0] == nullptr && warp::elect() && chunk < residual.chunks())
    context.await_carried(residual.event, [&] {
      return terms_of_sum(load<Order::relaxed, Kind::kScope>(residual.sums + chunk)) ==
             residual.terms;
    });
  warp::sync();
}

/// By each thread: x * norm of its chunk to shared memory, and what the block carries of it to the
/// next stage. Returns the sum of squares.
template <class Kind>
DEVICE float keep_chunk(NormedShared<Kind>& shared, const Residual<Kind>& residual,
                        uint32_t sequence, uint32_t chunk, const uint64_t (&sums)[kChunk],
                        const Bytes16& norm) {
  float squares = 0;
  float weighted[kChunk];
  UNROLL
  for (uint32_t i = 0; i < kChunk; ++i) {
    const float value = sum_value(sums[i]);
    squares += value * value;
    weighted[i] = value * (i % 2 == 0 ? low_half(norm.word[i / 2]) : high_half(norm.word[i / 2]));
  }
  shared.x[sequence].put(chunk, weighted);
  if (residual.carries(chunk)) {
    UNROLL
    for (uint32_t i = 0; i < kChunk; ++i)
      add_units<Kind::kScope>(Peer<uint64_t>(residual.carry_to + residual.word(sequence, chunk, i)),
                              units_carried(units_of_sum(sums[i]), residual.broken));
  }
  return squares;
}

/// By all threads: leaves x * norm in shared memory, and finds the factors 1 / rms(x) that products
/// with it still lack.
template <class Kind>
DEVICE void normed_input(Context& context, NormedShared<Kind>& shared,
                         const Residual<Kind>& residual, const BFloat16* norm, float epsilon,
                         float (&scales)[Kind::kSequences]) {
  float squares[Kind::kSequences] = {};
  const auto norm_of = [&](uint32_t chunk) {
    return load_vector<Cache::read_only>(reinterpret_cast<const Bytes16*>(norm) + chunk);
  };
  // Most threads have one chunk: its weights are on their way while the vector is awaited.
  const bool any = context.thread() < residual.chunks();
  const Bytes16 first = any ? norm_of(context.thread()) : Bytes16{};
  await_first_word(context, residual);
  KEEP_ROLLED
  for (uint32_t chunk = context.thread(); chunk < residual.chunks(); chunk += context.threads()) {
    const Bytes16 weights = chunk == context.thread() ? first : norm_of(chunk);
    UNROLL
    for (uint32_t group = 0; group < Kind::kSequences; group += kTogether<Kind>) {
      uint64_t sums[kTogether<Kind>][kChunk];
      if (residual.rows[0] == nullptr) {
        await_words(context, residual, group, chunk, sums);
      } else {
        UNROLL
        for (uint32_t s = 0; s < kTogether<Kind>; ++s)
          words_of_row(residual.rows[group + s], chunk, residual.broken, sums[s]);
      }
      UNROLL
      for (uint32_t s = 0; s < kTogether<Kind>; ++s)
        squares[group + s] += keep_chunk(shared, residual, group + s, chunk, sums[s], weights);
    }
  }
  UNROLL
  for (uint32_t s = 0; s < Kind::kSequences; ++s) {
    squares[s] = warp_sum(squares[s]);
    if (warp::elect()) shared.warp_squares[s][context.warp()] = squares[s];
  }
  context.sync();
  UNROLL
  for (uint32_t s = 0; s < Kind::kSequences; ++s) {
    float sum = 0;
    UNROLL
    for (uint32_t warp = 0; warp < kComputeWarpsMax; ++warp)
      sum += warp < context.warps() ? shared.warp_squares[s][warp] : 0;
    scales[s] = reciprocal_square_root(sum / static_cast<float>(residual.hidden) + epsilon);
  }
}

}  // namespace tokenyard::megakernel
