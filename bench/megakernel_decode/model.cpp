#include "bench/megakernel_decode/model.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

namespace tokenyard::bench {

namespace {

/// Normal numbers drawn once, of which every matrix takes its scaled share again and again.
class Drawn {
 public:
  explicit Drawn(float deviation, float mean = 0) : block_(kBlock) {
    std::mt19937 random(17);
    std::normal_distribution<float> normal(mean, deviation);
    for (uint16_t& bits : block_) {
      const float value = normal(random);
      uint32_t whole = 0;
      std::memcpy(&whole, &value, sizeof(whole));
      bits = static_cast<uint16_t>(whole >> 16);
    }
  }

  void fill(megakernel::TensorMemory& memory, BFloat16* to, size_t count, size_t shift) const {
    // A block whose size has nothing to do with that of rows, from a place that differs.
    for (size_t at = 0; at < count;) {
      const size_t from = (at + shift) % kBlock, here = std::min(count - at, kBlock - from);
      memory.write(to + at, block_.data() + from, here * sizeof(uint16_t));
      at += here;
    }
  }
  /// A rank's part of each of so many rows.
  void fill_parts(megakernel::TensorMemory& memory, BFloat16* to, size_t rows, size_t row,
                  size_t shift, const megakernel::Graph::Place& place) const {
    const size_t part = row / place.ranks;
    std::vector<uint16_t> all(rows * part);
    for (size_t i = 0; i < all.size(); ++i)
      all[i] = block_[(i / part * row + place.rank * part + i % part + shift) % kBlock];
    memory.write(to, all.data(), all.size() * sizeof(uint16_t));
  }

 private:
  static constexpr size_t kBlock = 4000037;
  std::vector<uint16_t> block_;
};

const BFloat16* drawn(megakernel::TensorMemory& memory, const Drawn& numbers, size_t count,
                      size_t shift) {
  auto* const made = static_cast<BFloat16*>(memory.local(count * sizeof(BFloat16)));
  numbers.fill(memory, made, count, shift);
  return made;
}

}  // namespace

megakernel::DecoderWeights random_weights(megakernel::TensorMemory& memory,
                                          const megakernel::DecoderShape& shape,
                                          const megakernel::Graph::Place& place) {
  const auto deviation = [](uint32_t inputs) { return 1 / std::sqrt(static_cast<float>(inputs)); };
  const Drawn of_hidden(deviation(shape.hidden)), of_inner(deviation(shape.inner));
  const Drawn of_norms(0.1f, 1);
  const size_t hidden = shape.hidden, columns = size_t{shape.query_heads} * shape.head_dim;
  const size_t kv = 2 * size_t{shape.kv_heads} * shape.head_dim;
  const BFloat16* const embedding = drawn(memory, of_hidden, shape.vocabulary * hidden, 1);
  megakernel::DecoderWeights weights{
      .embedding = embedding,
      .layers = {},
      .final_norm = drawn(memory, of_norms, hidden, 2),
      .head = embedding + shape.vocabulary / place.ranks * place.rank * hidden};
  const auto part = [&](const Drawn& numbers, size_t count, size_t shift) {
    return drawn(memory, numbers, count / place.ranks, shift + count / place.ranks * place.rank);
  };
  for (uint32_t layer = 0; layer < shape.layers; ++layer) {
    const size_t shift = 104729 * (layer + 1);
    weights.layers.push_back(
        {.attention_norm = drawn(memory, of_norms, hidden, shift),
         .qkv = part(of_hidden, (columns + kv) * hidden, shift + 1),
         .out = part(of_hidden, hidden * columns, shift + 2),
         .mlp_norm = drawn(memory, of_norms, hidden, shift + 3),
         .gate_up = part(of_hidden, 2 * size_t{shape.inner} * hidden, shift + 4),
         .down = nullptr});
    auto* const down =
        static_cast<BFloat16*>(memory.local(hidden * shape.inner / place.ranks * sizeof(BFloat16)));
    of_inner.fill_parts(memory, down, hidden, shape.inner, shift + 5, place);
    weights.layers.back().down = down;
  }
  return weights;
}

void fill_cache(megakernel::TensorMemory& memory, const megakernel::DenseDecoder& decoder,
                const megakernel::DecoderShape& shape, const megakernel::Graph::Place& place,
                uint32_t sequences) {
  const size_t layer = size_t{shape.kv_heads} * shape.positions_max * shape.head_dim;
  const Drawn drawn(1);
  const size_t cached = shape.layers * layer / place.ranks;
  for (uint32_t s = 0; s < sequences; ++s) {
    drawn.fill_parts(memory, decoder.k_cache + s * cached, shape.layers, layer, 3, place);
    drawn.fill_parts(memory, decoder.v_cache + s * cached, shape.layers, layer, 4, place);
  }
}

double bytes_of_step(const megakernel::DecoderShape& shape, uint32_t position, uint32_t sequences) {
  const double hidden = shape.hidden, columns = double(shape.query_heads) * shape.head_dim;
  const double kv = 2.0 * shape.kv_heads * shape.head_dim;
  const double layer =
      (2 * columns + kv) * hidden + 3 * hidden * shape.inner + kv * position * sequences;
  return 2 * (shape.layers * layer + hidden * shape.vocabulary);
}

}  // namespace tokenyard::bench
