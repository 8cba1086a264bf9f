/// Shapes of the decoders that tests use.
#pragma once

#include "decoder/dense_decoder.hpp"
#include "decoder/llama_shapes.hpp"

namespace tokenyard::megakernel {

constexpr DecoderShape small_shape(uint32_t positions_max) {
  return {.vocabulary = 100,
          .hidden = 64,
          .layers = 2,
          .query_heads = 8,
          .kv_heads = 4,
          .head_dim = 16,
          .inner = 128,
          .page_tokens = 4,
          .positions_max = positions_max,
          .epsilon = 1e-5f,
          .rope_base = 10000};
}

/// Two layers of Llama-3.2-1B's size, with a small vocabulary.
constexpr DecoderShape gpus_shape(uint32_t positions_max) {
  DecoderShape shape = llama_1b(positions_max);
  shape.vocabulary = 3000;
  shape.layers = 2;
  shape.rope_base = 10000;
  return shape;
}

}  // namespace tokenyard::megakernel
