/// A random model, and a plain implementation of it with which decoders are compared.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "decoder/dense_decoder.hpp"
#include "decoder/tiles.hpp"

namespace tokenyard::megakernel {

using Matrix = std::vector<uint16_t>;  ///< BF16

inline float number(uint16_t bits) {
  const uint32_t whole = uint32_t{bits} << 16;
  float value = 0;
  std::memcpy(&value, &whole, sizeof(value));
  return value;
}
inline uint16_t rounded(float value) {
  uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

struct Model {
  struct Layer {
    Matrix attention_norm, qkv, out, mlp_norm, gate_up, down;
    Matrix qkv_bias, q_norm, k_norm;  ///< empty if the model has none
    uint32_t window;
  };
  /// Features of some models that Llama lacks.
  struct Extras {
    bool biases = false, norms = false;
    std::vector<uint32_t> windows = {};  ///< of the first layers; further layers have none
  };
  DecoderShape shape;
  Matrix embedding, final_norm, head;
  std::vector<Layer> layers;

  explicit Model(const DecoderShape& of) : Model(of, Extras{}) {}
  Model(const DecoderShape& of, const Extras& extras) : shape(of) {
    std::mt19937 random(5);
    const auto matrix = [&](size_t count, uint32_t inputs, float mean = 0) {
      std::normal_distribution<float> normal(mean, 1 / std::sqrt(static_cast<float>(inputs)));
      Matrix made(count);
      for (uint16_t& value : made) value = rounded(normal(random));
      return made;
    };
    const uint32_t hidden = shape.hidden, columns = shape.query_heads * shape.head_dim;
    embedding = matrix(size_t{shape.vocabulary} * hidden, 1);
    final_norm = matrix(hidden, 100, 1);
    head = matrix(size_t{shape.vocabulary} * hidden, hidden);
    const size_t rows = size_t{shape.kv_heads} * (shape.group() + 2) * shape.head_dim;
    for (uint32_t layer = 0; layer < shape.layers; ++layer)
      layers.push_back(
          {.attention_norm = matrix(hidden, 100, 1),
           .qkv = matrix(rows * hidden, hidden),
           .out = matrix(size_t{hidden} * columns, columns),
           .mlp_norm = matrix(hidden, 100, 1),
           .gate_up = matrix(size_t{2} * shape.inner * hidden, hidden),
           .down = matrix(size_t{hidden} * shape.inner, shape.inner),
           .qkv_bias = extras.biases ? matrix(rows, 1) : Matrix{},
           .q_norm = extras.norms ? matrix(shape.head_dim, 10, 1) : Matrix{},
           .k_norm = extras.norms ? matrix(shape.head_dim, 10, 1) : Matrix{},
           .window = layer < extras.windows.size() ? extras.windows[layer] : UINT32_MAX});
  }

  /// Returns one rank's part of the weights, in its memory.
  DecoderWeights placed(TensorMemory& memory, const Graph::Place& where = {}) const {
    const auto place = [&](const Matrix& matrix) {
      const TensorView there = memory.local(matrix.size() * 2);
      memory.write(there, ConstTensorView::bytes_at(matrix.data(), matrix.size() * 2));
      return there.as<const BFloat16>();
    };
    /// Places the rank's part of each of `rows` rows, tiled as a matrix of `columns` columns.
    const auto place_part = [&](const Matrix& matrix, uint32_t columns, size_t rows = 1) {
      const size_t row = matrix.size() / rows, part = row / where.ranks;
      Matrix mine;
      for (size_t i = 0; i < rows; ++i) {
        const auto from = matrix.begin() + static_cast<std::ptrdiff_t>(i * row + where.rank * part);
        mine.insert(mine.end(), from, from + static_cast<std::ptrdiff_t>(part));
      }
      return place(tiled(mine, mine.size() / columns, columns));
    };
    const auto place_part_of_vector = [&](const Matrix& vector) {
      const auto part = static_cast<std::ptrdiff_t>(vector.size() / where.ranks);
      const auto from = vector.begin() + where.rank * part;
      return vector.empty() ? nullptr : place({from, from + part});
    };
    const auto place_norm = [&](const Matrix& norm) {
      return norm.empty() ? nullptr : place(norm);
    };
    const uint32_t hidden = shape.hidden, group = shape.group() * shape.head_dim;
    DecoderWeights weights{.embedding = place(embedding),
                           .layers = {},
                           .final_norm = place(final_norm),
                           .head = place_part(head, hidden)};
    for (const Layer& layer : layers)
      weights.layers.push_back({.attention_norm = place(layer.attention_norm),
                                .qkv = place_part(layer.qkv, hidden),
                                .out = place_part(layer.out, group),
                                .mlp_norm = place(layer.mlp_norm),
                                .gate_up = place_part(layer.gate_up, hidden),
                                .down = place_part(layer.down, shape.inner / where.ranks, hidden),
                                .qkv_bias = place_part_of_vector(layer.qkv_bias),
                                .q_norm = place_norm(layer.q_norm),
                                .k_norm = place_norm(layer.k_norm),
                                .window = layer.window});
    return weights;
  }
};

using Vector = std::vector<float>;

/// The model in plain code, not optimised; keeps its own cache.
class Plain {
 public:
  explicit Plain(const Model& model) : model_(model), keys_(model.layers.size()), values_(keys_) {}

  /// Starts after `positions` earlier tokens; `keys` and `values`: [layers][kv
  /// heads][positions][dim].
  void begin(uint32_t positions, const Matrix& keys, const Matrix& values) {
    const size_t heads = model_.shape.kv_heads, dim = model_.shape.head_dim;
    position_ = positions;
    for (size_t layer = 0; layer < keys_.size(); ++layer)
      for (size_t row = 0; row < positions * heads; ++row)
        for (size_t d = 0; d < dim; ++d) {
          const size_t at = ((layer * heads + row % heads) * positions + row / heads) * dim + d;
          keys_[layer].push_back(number(keys[at]));
          values_[layer].push_back(number(values[at]));
        }
  }

  Vector logits(uint32_t token) {
    const DecoderShape& shape = model_.shape;
    Vector x(shape.hidden);
    for (uint32_t i = 0; i < shape.hidden; ++i)
      x[i] = number(model_.embedding[size_t{token} * shape.hidden + i]);
    for (size_t layer = 0; layer < model_.layers.size(); ++layer) {
      attend(layer, x);
      feed_forward(model_.layers[layer], x);
    }
    ++position_;
    return product(model_.head, normed(x, model_.final_norm), 0, shape.vocabulary);
  }

 private:
  static Vector product(const Matrix& rows, const Vector& x, size_t first, size_t count) {
    Vector y(count, 0);
    for (size_t row = 0; row < count; ++row)
      for (size_t i = 0; i < x.size(); ++i)
        y[row] += number(rows[(first + row) * x.size() + i]) * x[i];
    return y;
  }
  Vector normed(const Vector& x, const Matrix& norm) const {
    float squares = 0;
    for (const float value : x) squares += value * value;
    const float scale =
        1 / std::sqrt(squares / static_cast<float>(x.size()) + model_.shape.epsilon);
    Vector y(x);
    for (size_t i = 0; i < x.size(); ++i) y[i] *= number(norm[i]) * scale;
    return y;
  }
  void normalise(float* head, const Matrix& norm) const {
    if (norm.empty()) return;
    const Vector y = normed({head, head + norm.size()}, norm);
    std::copy(y.begin(), y.end(), head);
  }
  void rotate(float* x) const {
    const uint32_t half = model_.shape.head_dim / 2;
    for (uint32_t i = 0; i < half; ++i) {
      const float angle = static_cast<float>(position_) *
                          std::pow(model_.shape.rope_base, -static_cast<float>(i) / half);
      const float first = x[i], second = x[i + half];
      x[i] = first * std::cos(angle) - second * std::sin(angle);
      x[i + half] = second * std::cos(angle) + first * std::sin(angle);
    }
  }

  void attend(size_t layer, Vector& x) {
    const DecoderShape& shape = model_.shape;
    const uint32_t dim = shape.head_dim, group = shape.group(), words = (group + 2) * dim;
    const Vector in = normed(x, model_.layers[layer].attention_norm);
    for (uint32_t head = 0; head < shape.kv_heads; ++head) {
      Vector qkv = product(model_.layers[layer].qkv, in, size_t{head} * words, words);
      const Model::Layer& weights = model_.layers[layer];
      for (uint32_t i = 0; i < words && !weights.qkv_bias.empty(); ++i)
        qkv[i] += number(weights.qkv_bias[size_t{head} * words + i]);
      for (uint32_t i = 0; i <= group; ++i) {
        normalise(qkv.data() + i * dim, i < group ? weights.q_norm : weights.k_norm);
        rotate(qkv.data() + i * dim);
      }
      for (uint32_t d = 0; d < dim; ++d) {
        keys_[layer].push_back(number(rounded(qkv[group * dim + d])));
        values_[layer].push_back(number(rounded(qkv[(group + 1) * dim + d])));
      }
      Vector out;
      for (uint32_t i = 0; i < group; ++i) attend_head(layer, head, qkv.data() + i * dim, out);
      const Vector y =
          product(model_.layers[layer].out, out, size_t{head} * shape.hidden, shape.hidden);
      for (uint32_t i = 0; i < shape.hidden; ++i) x[i] += y[i];
    }
  }
  void attend_head(size_t layer, uint32_t head, const float* q, Vector& out) const {
    const uint32_t dim = model_.shape.head_dim, heads = model_.shape.kv_heads;
    Vector sum(dim, 0);
    float total = 0;
    const uint32_t window = model_.layers[layer].window;
    for (uint32_t position = 0; position <= position_; ++position) {
      if (position_ - position >= window) continue;
      const size_t at = (size_t{position} * heads + head) * dim;
      float score = 0;
      for (uint32_t d = 0; d < dim; ++d) score += q[d] * keys_[layer][at + d];
      const float weight = std::exp(score / std::sqrt(static_cast<float>(dim)));
      total += weight;
      for (uint32_t d = 0; d < dim; ++d) sum[d] += weight * values_[layer][at + d];
    }
    for (const float value : sum) out.push_back(value / total);
  }

  void feed_forward(const Model::Layer& layer, Vector& x) const {
    const Vector pairs =
        product(layer.gate_up, normed(x, layer.mlp_norm), 0, 2 * model_.shape.inner);
    Vector inner(model_.shape.inner);
    for (size_t i = 0; i < inner.size(); ++i)
      inner[i] = number(rounded(pairs[2 * i] / (1 + std::exp(-pairs[2 * i])) * pairs[2 * i + 1]));
    const Vector y = product(layer.down, inner, 0, x.size());
    for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];
  }

  const Model& model_;
  std::vector<Vector> keys_, values_;  ///< [layers][positions][kv heads][dim]
  uint32_t position_ = 0;
};

}  // namespace tokenyard::megakernel
