/// A model with random weights, in a rank's memory.
#pragma once

#include "decoder/dense_decoder.hpp"

namespace tokenyard::bench {

/// Llama-3.2-1B: 16 layers, 2.47 GB of BF16 read per token.
constexpr megakernel::DecoderShape llama_1b(uint32_t positions_max) {
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
constexpr megakernel::DecoderShape tiny(uint32_t positions_max) {
  return {.vocabulary = 128,
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

/// Makes one rank's part of the weights, at a scale at which activations neither vanish nor
/// explode.
megakernel::DecoderWeights random_weights(megakernel::TensorMemory& memory,
                                          const megakernel::DecoderShape& shape,
                                          const megakernel::Graph::Place& place = {});
/// Fills the caches of all sequences with random numbers that do not depend on how many ranks share
/// them.
void fill_cache(megakernel::TensorMemory& memory, const megakernel::DenseDecoder& decoder,
                const megakernel::DecoderShape& shape, const megakernel::Graph::Place& place = {},
                uint32_t sequences = 1);
/// Returns the bytes that one step of all sequences must read at a position.
double bytes_of_step(const megakernel::DecoderShape& shape, uint32_t position,
                     uint32_t sequences = 1);

}  // namespace tokenyard::bench
