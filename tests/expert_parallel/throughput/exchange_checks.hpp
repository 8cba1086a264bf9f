/// Compares results of calls bit for bit. Each function names the first difference; an empty string
/// means none.
#pragma once

#include <fmt/format.h>

#include <string>

#include "expert_parallel/difference.hpp"
#include "expert_parallel/exchange_case.hpp"
#include "expert_parallel/internode/hosts_reference.hpp"
#include "fabric/world_access.hpp"

namespace tokenyard::test {

/// Compares received rows and their metadata, once they have arrived.
inline std::string difference(ExpertParallel& exchange, const Received& received,
                              const Expected& expected) {
  exchange.wait();
  Accelerator& accelerator = accelerator_of(exchange.world());
  const size_t rows = received.rows;
  std::string text =
      difference("rows_from", received.rows_from, expected.rows_from) +
      difference("tokens_per_expert", received.tokens_per_expert, expected.tokens_per_expert);
  if (rows != expected.rows.size())
    return text + fmt::format("{} rows instead of {}", rows, expected.rows.size());
  const size_t choices = rows * exchange.options().topk;
  const auto* const x = received.x.as<uint16_t>();
  return text +
         difference("x", read_back(accelerator, x, rows * exchange.options().hidden), expected.x) +
         difference("topk_idx", read_back(accelerator, received.topk_idx.as<int32_t>(), choices),
                    expected.ids) +
         difference("topk_weights",
                    read_back(accelerator, received.topk_weights.as<float>(), choices),
                    expected.weights) +
         difference("source_token",
                    read_back(accelerator, received.source_token.as<int32_t>(), rows),
                    expected.sources);
}

struct CombineOptions {
  bool in_place = true;  ///< y in an output_buffer, else in memory that peers cannot read
  bool with_weights = false;
  uint32_t call = 0;  ///< as in expert_value
};

/// Computes the experts' results for a route, combines them, and compares the sums.
inline std::string difference_after_combine(ExpertParallel& exchange, const Received& received,
                                            const Shape& shape, const Tokens& mine,
                                            const Expected& expected, const CombineOptions& how) {
  Accelerator& accelerator = accelerator_of(exchange.world());
  const uint32_t rank = exchange.world().rank();
  const std::vector<uint16_t> y = expert_rows(shape, expected, rank, how.call);
  const DeviceArray<uint16_t> plain(accelerator, y);
  CombineBuffer buffer;
  if (how.in_place) {
    buffer = exchange.combine_buffer(*received.route);
    if (!y.empty())
      accelerator.copy(buffer.y.data, y.data(), y.size() * sizeof(uint16_t), Stream{});
    await_all(accelerator);
  }
  DeviceArray<uint16_t> out(accelerator, size_t{mine.count} * shape.hidden);
  DeviceArray<float> out_weights(accelerator, size_t{mine.count} * shape.topk);
  out.poison();
  out_weights.poison();
  CombineInput input{.y = how.in_place ? buffer.y : plain.bf16_rows(shape.hidden)};
  CombineOutput output{.x = out.bf16_rows(shape.hidden)};
  if (how.with_weights) {
    input.topk_weights = received.topk_weights;
    output.topk_weights = out_weights.view({mine.count, shape.topk});
  }
  exchange.combine(input, *received.route, output);
  exchange.wait();
  const Topology& topology = exchange.world().topology();
  std::string text = difference(
      "out", out.read(),
      topology.hosts == 1 ? expected_sums(shape, mine, rank, how.call)
                          : expected_sums_between(shape, topology.host_of, mine, rank, how.call));
  if (how.with_weights)
    text += difference("out_weights", out_weights.read(), expected_weights(mine));
  return text;
}

/// Dispatches, computes the experts' results, and combines.
inline std::string difference_after_exchange(World& world, const ExchangeCase& exchange_case) {
  const std::vector<Tokens> given = exchange_case.draw(), all = exchange_case.counted(given);
  const Expected expected = expected_on(exchange_case.shape, all, world.rank());
  ExpertParallel exchange(world, exchange_case.options());
  const TokensOnDevice tokens(accelerator_of(world), given[world.rank()],
                              exchange_case.idx_is_int64);
  const Received received = exchange.dispatch(tokens.input());
  std::string text = difference(exchange, received, expected);
  for (const CombineOptions how : {CombineOptions{.in_place = true, .with_weights = false},
                                   CombineOptions{.in_place = false, .with_weights = true}})
    text += difference_after_combine(exchange, received, exchange_case.shape, all[world.rank()],
                                     expected, how);
  return text;
}

}  // namespace tokenyard::test
