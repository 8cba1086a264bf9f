/// Shapes of published models, for tests and benchmarks.
#pragma once

#include "decoder/decoder_shape.hpp"

namespace tokenyard::megakernel {

/// Returns the shape of Llama-3.2-1B: 16 layers, 2.47 GB of BF16 read per token.
constexpr DecoderShape llama_1b(uint32_t positions_max) {
  return {.vocabulary = 128256,
          .hidden = 2048,
          .layers = 16,
          .query_heads = 32,
          .kv_heads = 8,
          .head_dim = 64,
          .inner = 8192,
          .page_tokens = 16,
          .positions_max = positions_max,
          .epsilon = 1e-5f,
          .rope_base = 500000};
}

}  // namespace tokenyard::megakernel
