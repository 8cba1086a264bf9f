#include "bench/megakernel_decode/model.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "decoder/tiles.hpp"

namespace tokenyard::bench {

namespace {

/// A pool of normal random numbers, drawn once and reused, scaled, for every matrix.
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

  /// Takes `count` numbers from a varying position: the pool's period is unrelated to row sizes.
  std::vector<uint16_t> take(size_t count, size_t shift) const {
    std::vector<uint16_t> taken(count);
    for (size_t at = 0; at < count;) {
      const size_t from = (at + shift) % kBlock, here = std::min(count - at, kBlock - from);
      std::copy_n(block_.begin() + static_cast<std::ptrdiff_t>(from), here,
                  taken.begin() + static_cast<std::ptrdiff_t>(at));
      at += here;
    }
    return taken;
  }
  /// Takes a rank's part of each of several rows.
  std::vector<uint16_t> take_parts(size_t rows, size_t row, size_t shift,
                                   const megakernel::Graph::Place& place) const {
    const size_t part = row / place.ranks;
    std::vector<uint16_t> taken(rows * part);
    for (size_t i = 0; i < taken.size(); ++i)
      taken[i] = block_[(i / part * row + place.rank * part + i % part + shift) % kBlock];
    return taken;
  }

 private:
  static constexpr size_t kBlock = 4000037;
  std::vector<uint16_t> block_;
};

const BFloat16* placed(megakernel::TensorMemory& memory, const std::vector<uint16_t>& numbers) {
  const TensorView there = memory.local(numbers.size() * sizeof(BFloat16));
  memory.write(there, ConstTensorView::of(std::span(numbers)));
  return there.as<BFloat16>();
}
const BFloat16* placed_tiled(megakernel::TensorMemory& memory, const std::vector<uint16_t>& numbers,
                             uint32_t columns) {
  return placed(memory, megakernel::tiled(numbers, numbers.size() / columns, columns));
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
  const auto vocabulary = of_hidden.take(shape.vocabulary * hidden, 1);
  const auto own_rows = static_cast<std::ptrdiff_t>(vocabulary.size() / place.ranks);
  const auto head = vocabulary.begin() + own_rows * place.rank;
  megakernel::DecoderWeights weights{
      .embedding = placed(memory, vocabulary),
      .layers = {},
      .final_norm = placed(memory, of_norms.take(hidden, 2)),
      .head = placed_tiled(memory, {head, head + own_rows}, shape.hidden)};
  const auto part = [&](const Drawn& numbers, size_t count, size_t shift, uint32_t columns_of_it) {
    return placed_tiled(memory,
                        numbers.take(count / place.ranks, shift + count / place.ranks * place.rank),
                        columns_of_it);
  };
  const uint32_t group = shape.group() * shape.head_dim, inner = shape.inner / place.ranks;
  for (uint32_t layer = 0; layer < shape.layers; ++layer) {
    const size_t shift = 104729 * (layer + 1);
    weights.layers.push_back(
        {.attention_norm = placed(memory, of_norms.take(hidden, shift)),
         .qkv = part(of_hidden, (columns + kv) * hidden, shift + 1, shape.hidden),
         .out = part(of_hidden, hidden * columns, shift + 2, group),
         .mlp_norm = placed(memory, of_norms.take(hidden, shift + 3)),
         .gate_up = part(of_hidden, 2 * size_t{shape.inner} * hidden, shift + 4, shape.hidden),
         .down = placed_tiled(memory, of_inner.take_parts(hidden, shape.inner, shift + 5, place),
                              inner)});
  }
  return weights;
}

void fill_cache(megakernel::TensorMemory& memory, const megakernel::DenseDecoder& decoder,
                const megakernel::DecoderShape& shape, const megakernel::Graph::Place& place,
                uint32_t sequences) {
  const size_t layer = size_t{shape.kv_heads} * shape.positions_max * shape.head_dim;
  const Drawn drawn(1);
  const size_t cached = shape.layers * layer / place.ranks;
  const auto keys = drawn.take_parts(shape.layers, layer, 3, place);
  const auto values = drawn.take_parts(shape.layers, layer, 4, place);
  for (uint32_t s = 0; s < sequences; ++s) {
    memory.write({decoder.k_cache + s * cached, DataType::bfloat16, {cached}},
                 {keys.data(), {cached}});
    memory.write({decoder.v_cache + s * cached, DataType::bfloat16, {cached}},
                 {values.data(), {cached}});
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
