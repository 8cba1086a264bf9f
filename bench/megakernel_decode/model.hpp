/// A model with random weights, in a rank's memory.
#pragma once

#include "decoder/dense_decoder.hpp"
#include "decoder/llama_shapes.hpp"

namespace tokenyard::bench {

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
