/// Shapes that decoders are tested with.
#pragma once

#include "decoder/dense_decoder.hpp"

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

/// Layers of Llama-3.2-1B's size.
constexpr DecoderShape gpus_shape(uint32_t positions_max) {
  DecoderShape shape = small_shape(positions_max);
  shape.vocabulary = 3000;
  shape.hidden = 2048;
  shape.query_heads = 32;
  shape.kv_heads = 8;
  shape.head_dim = 64;
  shape.inner = 8192;
  shape.page_tokens = 16;
  return shape;
}

}  // namespace tokenyard::megakernel
