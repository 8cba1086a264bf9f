/// One mixture-of-experts layer over several ranks, in C++; a small version of moe_layer.py.
///
/// Every rank has its own tokens, and a gate chooses two experts for each. Dispatch sends the
/// tokens to the ranks that hold their experts, the experts compute, and combine returns the sums.
/// A dense computation of the same layer checks every number.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "tokenyard/expert_parallel.hpp"

namespace {

using BFloat16 = uint16_t;  // The bits of a bfloat16.

constexpr uint32_t kHidden = 64, kExpertsPerRank = 2, kTopk = 2;
constexpr float kTolerance = 0.02f;  // Relative to the largest value: a few roundings to 8 bits.

float to_float(BFloat16 value) {
  return std::bit_cast<float>(uint32_t{value} << 16);
}
BFloat16 to_bfloat16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  return static_cast<BFloat16>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

using Vector = std::vector<float>;  // [hidden]

Vector random_vector(uint32_t size, uint32_t seed, float scale) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, scale);
  Vector values(size);
  for (float& value : values) value = normal(random);
  return values;
}

/// The experts: one matrix and a smooth nonlinearity each.
class Experts {
 public:
  Experts(uint32_t first, uint32_t count) : first_(first) {
    for (uint32_t expert = first; expert < first + count; ++expert)
      matrices_.push_back(
          random_vector(kHidden * kHidden, 1000 + expert, 1 / std::sqrt(float{kHidden})));
  }

  /// Adds an expert's result, weighted, to `sum`.
  void add(uint32_t expert, float weight, const Vector& token, Vector& sum) const {
    const Vector& matrix = matrices_[expert - first_];
    for (uint32_t row = 0; row < kHidden; ++row)
      sum[row] += weight * std::tanh(std::inner_product(token.begin(), token.end(),
                                                        matrix.begin() + row * kHidden, 0.0f));
  }

 private:
  uint32_t first_;
  std::vector<Vector> matrices_;
};

/// One rank's input to the layer.
struct Batch {
  std::vector<BFloat16> x;       // [tokens, hidden]
  std::vector<int32_t> choices;  // [tokens, topk]
  std::vector<float> weights;    // [tokens, topk]

  Vector token(uint32_t index) const {
    Vector values(kHidden);
    std::transform(x.begin() + index * kHidden, x.begin() + (index + 1) * kHidden, values.begin(),
                   to_float);
    return values;
  }
};

/// Applies the gate: softmax over the experts' scores, the best two, weights of sum 1.
Batch make_batch(uint32_t rank, uint32_t tokens, uint32_t experts) {
  Batch batch;
  for (const float value : random_vector(tokens * kHidden, rank, 1))
    batch.x.push_back(to_bfloat16(value));
  for (uint32_t token = 0; token < tokens; ++token) {
    Vector scores = random_vector(experts, rank * 100'003 + token, 1);
    std::vector<int32_t> order(experts);
    std::iota(order.begin(), order.end(), 0);
    std::partial_sort(order.begin(), order.begin() + kTopk, order.end(),
                      [&](int32_t a, int32_t b) { return scores[a] > scores[b]; });
    float sum = 0;
    for (uint32_t choice = 0; choice < kTopk; ++choice) sum += std::exp(scores[order[choice]]);
    for (uint32_t choice = 0; choice < kTopk; ++choice) {
      batch.choices.push_back(order[choice]);
      batch.weights.push_back(std::exp(scores[order[choice]]) / sum);
    }
  }
  return batch;
}

/// Runs the experts of one rank on its received rows: for each, the weighted sum of its choices.
void run_local_experts(const tokenyard::Received& received, uint32_t rank, BFloat16* y) {
  const uint32_t first = rank * kExpertsPerRank;
  const Experts experts(first, kExpertsPerRank);
  const auto* const x = received.x.as<BFloat16>();
  const auto* const ids = received.topk_idx.as<int32_t>();
  const auto* const weights = received.topk_weights.as<float>();
  for (uint32_t row = 0; row < received.rows; ++row) {
    Vector token(kHidden), sum(kHidden);
    std::transform(x + row * kHidden, x + (row + 1) * kHidden, token.begin(), to_float);
    for (uint32_t choice = row * kTopk; choice < (row + 1) * kTopk; ++choice)
      if (ids[choice] >= 0)  // -1: on another rank.
        experts.add(first + ids[choice], weights[choice], token, sum);
    std::transform(sum.begin(), sum.end(), y + row * kHidden, to_bfloat16);
  }
}

/// Returns the largest difference from the same layer computed densely.
float largest_error(const Batch& batch, uint32_t experts_in_all, const std::vector<BFloat16>& out) {
  const Experts experts(0, experts_in_all);
  float error = 0;
  for (uint32_t token = 0; token < out.size() / kHidden; ++token) {
    Vector sum(kHidden);
    for (uint32_t choice = token * kTopk; choice < (token + 1) * kTopk; ++choice)
      experts.add(batch.choices[choice], batch.weights[choice], batch.token(token), sum);
    for (uint32_t i = 0; i < kHidden; ++i)
      error = std::max(error, std::abs(sum[i] - to_float(out[token * kHidden + i])));
  }
  return error;
}

struct Outcome {
  uint32_t rows = 0;
  float error = INFINITY;
  std::string problem;
};

/// Runs one rank's part of the layer: the way an application uses the library.
Outcome run_layer(tokenyard::World& world, uint32_t tokens) {
  const uint32_t experts = world.size() * kExpertsPerRank;
  const Batch batch = make_batch(world.rank(), tokens, experts);
  tokenyard::ExpertParallel exchange(
      world,
      {.experts = experts, .hidden = kHidden, .topk = kTopk, .tokens_max = tokens, .sms = 0});

  using tokenyard::DataType;
  const tokenyard::Received received =
      exchange.dispatch({.x = {batch.x.data(), DataType::bfloat16, {tokens, kHidden}},
                         .topk_idx = {batch.choices.data(), {tokens, kTopk}},
                         .topk_weights = {batch.weights.data(), {tokens, kTopk}}});
  // Combine reads results in arena memory in place.
  const tokenyard::CombineBuffer results = exchange.combine_buffer(*received.route);
  run_local_experts(received, world.rank(), results.y.as<BFloat16>());
  std::vector<BFloat16> out(batch.x.size());
  exchange.combine({.y = results.y}, *received.route,
                   {.x = {out.data(), DataType::bfloat16, {tokens, kHidden}}});
  exchange.wait();
  return {.rows = received.rows, .error = largest_error(batch, experts, out), .problem = {}};
}

}  // namespace

int main(int argc, char** argv) {
  uint32_t ranks = 4, tokens = 64;
  CLI::App app("A mixture-of-experts layer over several ranks, checked against a dense one");
  app.add_option("--ranks", ranks, "ranks, one thread each")->check(CLI::Range(1, 64));
  app.add_option("--tokens", tokens, "tokens per rank")->check(CLI::Range(1, 65536));
  CLI11_PARSE(app, argc, argv);

  const auto worlds = tokenyard::World::in_process(ranks, "host");
  std::vector<Outcome> outcomes(ranks);
  {
    std::vector<std::jthread> threads;
    for (uint32_t rank = 0; rank < ranks; ++rank)
      threads.emplace_back([&, rank] {
        try {
          outcomes[rank] = run_layer(*worlds[rank], tokens);
        } catch (const tokenyard::Error& error) {
          outcomes[rank].problem = error.what();
        }
      });
  }
  bool ok = true;
  fmt::print("{:>4} {:>8} {:>14} {:>14}\n", "rank", "tokens", "rows received", "largest error");
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    const Outcome& outcome = outcomes[rank];
    if (outcome.problem.empty())
      fmt::print("{:>4} {:>8} {:>14} {:>14.5f}\n", rank, tokens, outcome.rows, outcome.error);
    else
      fmt::print("{:>4} {}\n", rank, outcome.problem);
    ok = ok && outcome.error <= kTolerance;
  }
  fmt::print("{}\n", ok ? "equal to the dense layer" : "NOT equal to the dense layer");
  return ok ? 0 : 1;
}
