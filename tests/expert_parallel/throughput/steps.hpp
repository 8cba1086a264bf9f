/// Calls beyond the plain exchange, each checked: outputs of fixed size, rows by expert. Each
/// returns an empty string if the result is right.
#pragma once

#include "expert_parallel/throughput/exchange_checks.hpp"
#include "fabric/arena.hpp"
#include "fabric/world_access.hpp"

namespace tokenyard::test {

/// Dispatches with `spare` places too many and without a waiting host, then combines.
inline std::string difference_with_places(ExpertParallel& exchange, const TokensOnDevice& tokens,
                                          const Shape& shape, const Tokens& mine,
                                          const Expected& expected, uint32_t spare) {
  Accelerator& accelerator = accelerator_of(exchange.world());
  const auto rows = static_cast<uint32_t>(expected.rows.size());
  DispatchInput input = tokens.input();
  input.received_tokens_max = rows + spare;
  Received received = exchange.dispatch(input);
  std::vector<uint16_t> y = expert_rows(shape, expected, exchange.world().rank());
  y.resize(size_t{received.rows} * shape.hidden, 0x7fff);
  const DeviceArray<uint16_t> results(accelerator, y);
  const DeviceArray<uint16_t> out(accelerator, mine.x.size());
  exchange.combine({.y = results.bf16_rows(exchange.options().hidden)}, *received.route,
                   {.x = out.bf16_rows(exchange.options().hidden)});
  exchange.wait();
  const auto sources = read_back(accelerator, received.source_token.as<int32_t>(), received.rows);
  for (uint32_t row = rows; row < received.rows; ++row)
    if (sources[row] != -1) return fmt::format("place {} is not marked", row);
  received.rows = rows;
  received.rows_from = expected.rows_from;
  received.tokens_per_expert = expected.tokens_per_expert;
  return difference(exchange, received, expected) +
         difference("out", out.read(), expected_sums(shape, mine, exchange.world().rank()));
}

/// Dispatches with a watcher. Once they have ended, every source and expert must be ready.
inline std::string difference_if_watched(ExpertParallel& exchange, const TokensOnDevice& tokens,
                                         const Expected& expected) {
  Accelerator& accelerator = accelerator_of(exchange.world());
  DispatchInput input = tokens.input();
  input.watcher = Stream{};
  const Received first = exchange.dispatch(input);
  input.topk_idx = {};
  input.topk_weights = {};
  const Received again = exchange.dispatch(input, *first.route);
  std::string text = difference(exchange, first, expected) + difference(exchange, again, expected);
  for (const Received* const received : {&first, &again})
    text += difference("sources_ready",
                       read_back(accelerator, received->sources_ready.as<uint32_t>(),
                                 expected.rows_from.size()),
                       std::vector<uint32_t>(expected.rows_from.size(), 1)) +
            difference("experts_ready",
                       read_back(accelerator, received->experts_ready.as<uint32_t>(),
                                 expected.tokens_per_expert.size()),
                       std::vector<uint32_t>(expected.tokens_per_expert.size(), 1));
  return text;
}

/// Groups received rows by expert and combines them: each row counts once per expert.
inline std::string difference_by_expert(ExpertParallel& exchange, const Received& received,
                                        const Shape& shape, const Tokens& mine,
                                        uint32_t alignment) {
  Accelerator& accelerator = accelerator_of(exchange.world());
  const ExpertRows rows = exchange.group_by_expert(received, {.alignment = alignment});
  const DeviceArray<uint16_t> out(accelerator, mine.x.size());
  exchange.combine({.y = rows.x, .by_expert = &rows}, *received.route,
                   {.x = out.bf16_rows(exchange.options().hidden)});
  exchange.wait();
  std::vector<uint16_t> expected;
  for (uint32_t token = 0; token < mine.count; ++token)
    for (uint32_t column = 0; column < shape.hidden; ++column) {
      const float value = from_bf16(mine.x[size_t{token} * shape.hidden + column]);
      float home = 0;
      for (uint32_t rank = 0; rank < shape.ranks; ++rank) {
        float sum = 0;
        for (uint32_t choice = 0; choice < shape.topk; ++choice) {
          const int64_t id = mine.ids[size_t{token} * shape.topk + choice];
          if (shape.holds(rank, id)) sum += value;
        }
        home += from_bf16(to_bf16(sum));
      }
      expected.push_back(to_bf16(home));
    }
  return difference("out", out.read(), expected);
}

/// Returns the rows of all experts if each has a multiple of `alignment`.
inline uint32_t padded_rows(const std::vector<uint32_t>& tokens_per_expert, uint32_t alignment) {
  uint32_t rows = 0;
  for (const uint32_t tokens : tokens_per_expert)
    rows += (tokens + alignment - 1) / alignment * alignment;
  return rows;
}

/// Compares rows grouped by expert as they arrive with those of `received`, grouped afterwards;
/// with `spare` more places, and with or without a host that waits for the counts. Runs three
/// calls, because words alternate: what one call leaves behind meets the second call after it. The
/// first two send other tokens, so that nothing that the last call fails to bring can be left over
/// from them.
inline std::string difference_by_expert_at_once(ExpertParallel& exchange,
                                                const TokensOnDevice& tokens,
                                                const Received& received,
                                                const TokensOnDevice& others,
                                                const Expected& expected_of_others,
                                                uint32_t alignment, uint32_t spare, bool waits) {
  Accelerator& accelerator = accelerator_of(exchange.world());
  const ExpertRows after = exchange.group_by_expert(received, {.alignment = alignment});
  DispatchInput input = tokens.input();
  if (!waits) input.received_tokens_max = received.rows + spare;
  const GroupByExpertOptions expand{.alignment = alignment, .rows_max = after.rows + spare};
  DispatchInput before = others.input();
  if (!waits)
    before.received_tokens_max = static_cast<uint32_t>(expected_of_others.rows.size()) + spare;
  const GroupByExpertOptions grouped{
      .alignment = alignment,
      .rows_max = padded_rows(expected_of_others.tokens_per_expert, alignment) + spare};
  for (uint32_t call = 0; call < 2; ++call) exchange.dispatch_by_expert(before, grouped);
  const RowsByExpert at_once = exchange.dispatch_by_expert(input, expand);
  exchange.wait();
  const ExpertRows& rows = at_once.rows;
  if (rows.rows != after.rows + spare) return "not as many places as were asked for";
  const auto same = [&](const char* what, const auto* left, const auto* right, size_t count) {
    return difference(what, read_back(accelerator, left, count),
                      read_back(accelerator, right, count));
  };
  const uint32_t topk = exchange.options().topk;
  const size_t elements = size_t{after.rows} * exchange.options().hidden;
  std::string text =
      same("offsets", rows.offsets.as<int32_t>(), after.offsets.as<int32_t>(),
           received.tokens_per_expert.size() + 1) +
      same("row_of", rows.row_of.as<int32_t>(), after.row_of.as<int32_t>(), after.rows) +
      same("weights", rows.weights.as<float>(), after.weights.as<float>(), after.rows) +
      same("slots", rows.row_of_choice.as<int32_t>(), after.row_of_choice.as<int32_t>(),
           size_t{received.rows} * topk) +
      same("x", rows.x.as<uint16_t>(), after.x.as<uint16_t>(), elements) +
      same("source_token", at_once.received.source_token.as<int32_t>(),
           received.source_token.as<int32_t>(), received.rows);
  for (const int32_t row : read_back(accelerator, rows.row_of.as<int32_t>() + after.rows, spare))
    if (row != -1) return "a spare place is not marked";
  const uint32_t absent = waits ? 0 : spare * topk;
  for (const int32_t slot : read_back(
           accelerator, rows.row_of_choice.as<int32_t>() + size_t{received.rows} * topk, absent))
    if (slot != -1) return "a row that did not come has a place";
  return text;
}

/// Groups rows by expert as they arrive, with too few places on some ranks or all. Those ranks
/// raise an error, and the memory of the call can be reused once it has ended.
inline std::string difference_after_refusal_by_expert(ExpertParallel& exchange,
                                                      const TokensOnDevice& tokens,
                                                      const Received& received, uint32_t alignment,
                                                      uint32_t spare) {
  Accelerator& accelerator = accelerator_of(exchange.world());
  const ExpertRows before = exchange.group_by_expert(received, {.alignment = alignment});
  // Usually all: a rank with enough places waits for the others, and they for it.
  const bool cramped = before.rows > 1 && (spare > 3 || exchange.world().rank() % 2 == spare % 2);
  try {
    exchange.dispatch_by_expert(
        tokens.input(),
        {.alignment = alignment, .rows_max = cramped ? before.rows / 2 : before.rows + spare});
    if (cramped) return "more rows were accepted than there are places";
  } catch (const InvalidArgument& error) {
    if (!cramped || error.argument != "rows_max") throw;
  }
  exchange.wait();
  // A late store of another rank would land here.
  const size_t bytes = memory_of(exchange, tokens.count(), received.rows).peak_bytes;
  const ArenaBlock reused = arena_of(exchange.world()).allocate(bytes, {});
  accelerator.fill(reused.data(), 0, bytes, {});
  exchange.wait();
  return difference("memory that is used again",
                    read_back(accelerator, reinterpret_cast<const uint8_t*>(reused.data()), bytes),
                    std::vector<uint8_t>(bytes));
}

/// One rank sends rows of another type: all ranks name the same rank, and nothing has changed.
inline std::string difference_after_other_rows(ExpertParallel& exchange,
                                               const TokensOnDevice& tokens, uint32_t other,
                                               bool by_expert) {
  const World& world = exchange.world();
  const std::vector<uint32_t> present = present_ranks(world);
  if (present.size() == 1) return "";
  DispatchInput input = tokens.input();
  if (world.rank() == other)
    give_rows(input, {.type = DataType::float16}, tokens.count(), exchange.options().hidden,
              input.x.data, nullptr);
  try {
    if (by_expert)
      exchange.dispatch_by_expert(input, {});
    else
      exchange.dispatch(input);
    return "they were accepted";
  } catch (const InvalidArgument& error) {
    // The first rank that differs from the first.
    if (error.rank != std::max(other, present[1]) || error.argument != "x") throw;
  }
  return "";
}

}  // namespace tokenyard::test
