/// The shape of a dense decoder, and how many blocks and ranks it can be dealt out to.
#pragma once

#include <cstdint>

namespace tokenyard::megakernel {

/// As Llama 3 stretches what turns slowly, for contexts longer than it was trained with.
struct RopeScaling {
  float factor = 1;         ///< by which whatever turns less than `low` times is slowed down
  float low = 1, high = 2;  ///< turns; more than `high`: as without
  uint32_t positions = 0;   ///< within which turns are counted; 0: no scaling
};

struct DecoderShape {
  uint32_t vocabulary, hidden, layers, query_heads, kv_heads, head_dim, inner;
  uint32_t page_tokens, positions_max;  ///< of the KV cache
  float epsilon, rope_base;
  RopeScaling rope_scaling = {};

  uint32_t group() const { return query_heads / kv_heads; }
  /// Parts of the inner elements, each of as many as a block can hold.
  uint32_t inner_parts() const;
  /// What one of so many ranks, at least 1, has of it.
  DecoderShape of_rank(uint32_t ranks) const;
  /// The most blocks a rank, of so many, among which the stages can be dealt out; 0: none. Throws
  /// as check_model does.
  uint32_t blocks_of(uint32_t multiprocessors, uint32_t ranks = 1) const;
  /// Throws InvalidArgument naming what the tasks cannot do, whatever the blocks.
  void check_model(uint32_t ranks = 1) const;
  /// The same, and whether the stages can be dealt out to so many blocks a rank.
  void check(uint32_t blocks, uint32_t ranks = 1) const;
};

}  // namespace tokenyard::megakernel
