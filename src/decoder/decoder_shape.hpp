/// The shape of a dense decoder, and the numbers of blocks and ranks that can share its work.
#pragma once

#include <cstdint>

namespace tokenyard::megakernel {

/// Llama 3's RoPE scaling: slows low frequencies down for contexts longer than those in training.
struct RopeScaling {
  float factor = 1;         ///< slowdown of frequencies with fewer turns than `low`
  float low = 1, high = 2;  ///< turns; frequencies with more than `high` are unchanged
  uint32_t positions = 0;   ///< positions over which turns are counted; 0: no scaling
};

struct DecoderShape {
  uint32_t vocabulary, hidden, layers, query_heads, kv_heads, head_dim, inner;
  uint32_t page_tokens, positions_max;  ///< of the KV cache
  float epsilon, rope_base;
  RopeScaling rope_scaling = {};

  uint32_t group() const { return query_heads / kv_heads; }
  /// Returns the number of parts of the inner elements, each small enough for a block.
  uint32_t inner_parts() const;
  /// Returns the part of one rank out of `ranks`, at least 1.
  DecoderShape of_rank(uint32_t ranks) const;
  /// Returns the largest number of blocks per rank, at most `multiprocessors`, that can share the
  /// stages; 0: none. Throws as check_model does.
  uint32_t blocks_of(uint32_t multiprocessors, uint32_t ranks = 1) const;
  /// Throws InvalidArgument, which names the member that the tasks do not support with any number
  /// of blocks.
  void check_model(uint32_t ranks = 1) const;
  /// Checks the same, and that `blocks` blocks per rank can share the stages.
  void check(uint32_t blocks, uint32_t ranks = 1) const;
};

}  // namespace tokenyard::megakernel
