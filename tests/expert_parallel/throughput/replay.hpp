/// Calls that no host waits for, made once and repeated with other data: as replays of a CUDA graph
/// or, without graphs, as new calls.
#pragma once

#include <functional>

#include "expert_parallel/throughput/exchange_checks.hpp"
#include "fabric/world_access.hpp"

namespace tokenyard::test {

/// Makes the calls of `body` on the stream; returns a function that runs them.
using Replays =
    std::function<std::function<void()>(Stream stream, const std::function<void()>& body)>;

inline ExchangeCase replayed_throughput(uint32_t ranks) {
  std::vector<uint32_t> tokens;
  for (uint32_t rank = 0; rank < ranks; ++rank) tokens.push_back(40 + 9 * rank);
  return {.shape = {.ranks = ranks, .experts = 4 * ranks, .hidden = 256, .topk = 4},
          .tokens = tokens,
          .picking = {.none = 0.2}};
}

/// Checks dispatch, rows by expert, and combine of the rows themselves, over tokens and choices
/// that change from replay to replay: the sums contain one row per rank of a token, bit for bit.
inline void check_throughput_replays(World& world, const ExchangeCase& exchange_case,
                                     const Replays& replays) {
  Accelerator& accelerator = accelerator_of(world);
  const Shape& shape = exchange_case.shape;
  const uint32_t rank = world.rank(), count = exchange_case.tokens[rank];
  uint32_t places = 0;
  for (const uint32_t tokens : exchange_case.tokens) places += tokens;
  ExpertParallel exchange(world, exchange_case.options());
  const Stream stream = accelerator.make_stream();
  DeviceArray<uint16_t> x(accelerator, size_t{count} * shape.hidden);
  DeviceArray<int64_t> ids(accelerator, size_t{count} * shape.topk);
  DeviceArray<float> weights(accelerator, size_t{count} * shape.topk);
  DeviceArray<uint16_t> out(accelerator, size_t{count} * shape.hidden);
  const DispatchInput input{.x = x.bf16_rows(shape.hidden),
                            .topk_idx = ids.view({count, shape.topk}),
                            .topk_weights = weights.view({count, shape.topk}),
                            .received_tokens_max = places};
  ExchangeCase drawn = exchange_case;
  const auto fill = [&](uint32_t seed) {
    drawn.seed = seed;
    const Tokens mine = drawn.draw()[rank];
    accelerator.copy(x.data(), mine.x.data(), mine.x.size() * 2, stream);
    accelerator.copy(ids.data(), mine.ids.data(), mine.ids.size() * 8, stream);
    accelerator.copy(weights.data(), mine.weights.data(), mine.weights.size() * 4, stream);
    await_all(accelerator, stream);
  };
  fill(1);
  {
    std::optional<Received> received;
    std::optional<ExpertRows> rows;
    const auto run = replays(stream, [&] {
      received = exchange.dispatch(input, stream);
      rows = exchange.group_by_expert(*received, {.rows_max = places * shape.topk}, stream);
      exchange.combine({.y = received->x}, *received->route,
                       {.x = out.bf16_rows(exchange.options().hidden)}, stream);
    });
    for (uint32_t seed = 1; seed <= 4; ++seed) {
      fill(seed);
      world.barrier("a replay");
      run();
      exchange.wait(stream);
      const std::vector<Tokens> all = drawn.draw();
      const Expected expected = expected_on(shape, all, rank);
      Received valid = *received;
      valid.rows = static_cast<uint32_t>(expected.rows.size());
      valid.rows_from = expected.rows_from;
      valid.tokens_per_expert = expected.tokens_per_expert;
      EXPECT_EQ(difference(exchange, valid, expected), "") << "seed " << seed;
      std::vector<uint32_t> per_expert;
      const auto offsets =
          read_back(accelerator, rows->offsets.as<int32_t>(), shape.local_experts(rank) + 1);
      for (uint32_t expert = 0; expert < shape.local_experts(rank); ++expert)
        per_expert.push_back(static_cast<uint32_t>(offsets[expert + 1] - offsets[expert]));
      EXPECT_EQ(per_expert, expected.tokens_per_expert);
      std::vector<uint16_t> sums;
      for (uint32_t token = 0; token < count; ++token)
        for (uint32_t column = 0; column < shape.hidden; ++column) {
          float sum = 0;
          for (uint32_t there = 0; there < shape.ranks; ++there)
            if (goes_to(shape, all[rank], token, there))
              sum += from_bf16(all[rank].x[size_t{token} * shape.hidden + column]);
          sums.push_back(to_bf16(sum));
        }
      EXPECT_EQ(difference("out", out.read(), sums), "") << "seed " << seed;
    }
  }
  exchange.wait(stream);
  accelerator.free_stream(stream);
}

}  // namespace tokenyard::test
