/// Dispatch and combine among ranks of this process: every token visits the ranks of its two
/// experts, and the weighted sum of their results comes home.
#include <bit>
#include <cstdio>
#include <cstring>
#include <thread>
#include <tokenyard/expert_parallel.hpp>
#include <vector>

namespace {

constexpr uint32_t kRanks = 4, kTokens = 8, kHidden = 64, kTopk = 2;

/// BF16 is the upper half of a float.
uint16_t to_bf16(float value) {
  return static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
}
float to_float(uint16_t bits) {
  return std::bit_cast<float>(uint32_t{bits} << 16);
}

/// Expert e multiplies a row by e + 1, so a result can be computed in the head.
void run_rank(tokenyard::World& world) {
  const uint32_t rank = world.rank();
  std::vector<uint16_t> x(kTokens * kHidden, to_bf16(1));
  std::vector<int32_t> experts;
  std::vector<float> weights;
  for (uint32_t token = 0; token < kTokens; ++token) {
    experts.push_back(static_cast<int32_t>((rank + token) % kRanks));
    experts.push_back(static_cast<int32_t>((rank + token + 1) % kRanks));
    weights.insert(weights.end(), {0.25f, 0.75f});
  }

  tokenyard::ExpertParallel exchange(
      world, {.experts = kRanks, .hidden = kHidden, .topk = kTopk, .tokens_max = kTokens});
  using tokenyard::DataType;
  const tokenyard::Received received =
      exchange.dispatch({.x = {x.data(), DataType::bfloat16, {kTokens, kHidden}},
                         .topk_idx = {experts.data(), {kTokens, kTopk}},
                         .topk_weights = {weights.data(), {kTokens, kTopk}}});
  const tokenyard::CombineBuffer results = exchange.combine_buffer(*received.route);
  const auto* const rows = received.x.as<uint16_t>();
  const auto* const row_experts = received.topk_idx.as<int32_t>();
  const auto* const row_weights = received.topk_weights.as<float>();
  for (uint32_t row = 0; row < received.rows; ++row) {
    float factor = 0;
    for (uint32_t pick = row * kTopk; pick < (row + 1) * kTopk; ++pick)
      if (row_experts[pick] >= 0)  // Otherwise the expert is on another rank.
        factor += row_weights[pick] * static_cast<float>(rank + 1);
    for (uint32_t i = row * kHidden; i < (row + 1) * kHidden; ++i)
      results.y.as<uint16_t>()[i] = to_bf16(factor * to_float(rows[i]));
  }
  std::vector<uint16_t> out(x.size());
  exchange.combine({.y = results.y}, *received.route,
                   {.x = {out.data(), DataType::bfloat16, {kTokens, kHidden}}});
  exchange.wait();

  bool right = true;
  for (uint32_t token = 0; token < kTokens; ++token) {
    const auto first = static_cast<float>(experts[2 * token] + 1);
    const auto second = static_cast<float>(experts[2 * token + 1] + 1);
    right = right && to_float(out[token * kHidden]) == 0.25f * first + 0.75f * second;
  }
  std::printf("rank %u sent %u tokens, worked on %u rows of all ranks; sums are %s\n", rank,
              kTokens, received.rows, right ? "right" : "WRONG");
  if (!right) throw std::runtime_error("a sum is wrong");
}

}  // namespace

int main(int arguments, char** argument) {
  if (arguments > 1) {
    const bool asked = std::strcmp(argument[1], "--help") == 0;
    std::fprintf(asked ? stdout : stderr,
                 "usage: %s\n%u ranks, a thread each, exchange %u tokens per rank.\n", argument[0],
                 kRanks, kTokens);
    if (!asked) std::fprintf(stderr, "unknown option %s\n", argument[1]);
    return asked ? 0 : 2;
  }
  auto worlds = tokenyard::World::in_process(kRanks, "host");
  std::vector<int> failed(kRanks);
  std::vector<std::jthread> threads;
  for (uint32_t rank = 0; rank < kRanks; ++rank)
    // The thread owns its rank's world: if it fails, the others learn at once that it has left.
    threads.emplace_back([&failed, rank, world = std::move(worlds[rank])] {
      try {
        run_rank(*world);
      } catch (const std::exception& error) {
        std::fprintf(stderr, "rank %u: %s\n", rank, error.what());
        failed[rank] = 1;
      }
    });
  threads.clear();  // Joins them.
  return failed == std::vector<int>(kRanks) ? 0 : 1;
}
