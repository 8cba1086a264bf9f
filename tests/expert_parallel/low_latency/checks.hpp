/// Runs a batch through dispatch, the experts and combine, and compares bit for bit. Each function
/// names the first difference; an empty string means none.
#pragma once

#include <fmt/format.h>

#include <optional>
#include <string>

#include "expert_parallel/difference.hpp"
#include "expert_parallel/exchange_case.hpp"
#include "expert_parallel/low_latency/reference.hpp"
#include "expert_parallel/mapped.hpp"
#include "fabric/world_access.hpp"

namespace tokenyard::test {

/// The exchange that all ranks of a test make.
struct LowLatencyCase {
  Shape shape;
  std::vector<uint32_t> tokens;  ///< [ranks]
  Mapped map = {};               ///< `shape` counts places as experts
  Picking picking = {};
  LowLatencyRows rows = LowLatencyRows::fp8;
  bool given_fp8 = false;  ///< the caller casts to FP8
  bool hooks = false;
  bool logfmt = false;
  uint32_t early_weights = 0;  ///< bit r: rank r gives its weights to dispatch, not to combine
  std::optional<uint32_t> mistaken =
      {};  ///< rank that gives ids that are no experts where it should give -1
  uint32_t sms = 0;
  uint32_t seed = 1;
  LowLatencyPaths paths = LowLatencyPaths::topology;

  LowLatencyOptions options() const {
    return {.experts = map.given() ? map.experts : shape.experts,
            .places_per_rank = map.given() ? shape.local_experts() : 0,
            .hidden = shape.hidden,
            .topk = shape.topk,
            .tokens_max = 1 + *std::max_element(tokens.begin(), tokens.end()),
            .paths = paths};
  }
  bool gives_weights_early(uint32_t rank) const { return early_weights >> rank % 32 & 1; }
  /// Returns all ranks' tokens, whose ids are places if there is a map.
  std::vector<Tokens> draw() const {
    std::vector<Tokens> all = named();
    for (uint32_t rank = 0; rank < all.size(); ++rank)
      all[rank] = map.placed(shape, std::move(all[rank]), rank);
    return all;
  }
  /// Returns all ranks' tokens, whose ids are experts.
  std::vector<Tokens> named() const {
    std::mt19937 random(seed);
    std::vector<Tokens> all;
    for (const uint32_t count : tokens)
      all.push_back(random_tokens(map.named(shape), count, picking, random));
    return all;
  }
  /// Returns a rank's tokens, whose ids are experts; `tokens` are the same by place.
  Tokens named(const Tokens& tokens, uint32_t rank) const {
    Tokens named = tokens;
    if (map.given()) named.ids = this->named()[rank].ids;
    return named;
  }
  /// Returns a rank's tokens as it passes them to dispatch; `tokens` are the same by place.
  Tokens given(const Tokens& tokens, uint32_t rank) const {
    Tokens given = named(tokens, rank);
    if (rank != mistaken) return given;
    for (size_t i = 0; i < given.ids.size(); ++i)
      if (given.ids[i] == -1) given.ids[i] = no_expert(static_cast<int64_t>(i));
    return given;
  }
  DeliveredRow delivered(const Tokens& of, uint32_t token) const {
    const uint16_t* const x = of.x.data() + size_t{token} * shape.hidden;
    return rows == LowLatencyRows::bf16 ? deliver_bf16(x, shape.hidden)
                                        : deliver_fp8(x, shape.hidden, rows);
  }

 private:
  /// Returns an invalid id: too large, too small, or an expert's if it were cut to 32 bits.
  int64_t no_expert(int64_t choice) const {
    const uint32_t experts = map.named(shape).experts;
    if (choice % 3 == 0) return experts + choice;
    return choice % 3 == 1 ? -2 - choice : (int64_t{1} << 32) + choice % experts;
  }
};

/// A rank's tokens in its device's memory.
class LowLatencyTokens {
 public:
  LowLatencyTokens(World& world, const LowLatencyCase& of, const Tokens& tokens)
      : tokens_(accelerator_of(world), tokens, true),
        weights_(accelerator_of(world), tokens.weights),
        fp8_(accelerator_of(world), given(of, tokens, &DeliveredRow::data)),
        scales_(accelerator_of(world), given(of, tokens, &DeliveredRow::scales)),
        count_(tokens.count),
        hidden_(of.shape.hidden),
        topk_(of.shape.topk),
        given_fp8_(of.given_fp8),
        weights_early_(of.gives_weights_early(world.rank())),
        rows_(of.rows) {}

  LowLatencyInput input() const {
    const DispatchInput plain = tokens_.input();
    LowLatencyInput input{.x = plain.x, .topk_idx = plain.topk_idx, .rows = rows_};
    if (weights_early_) input.topk_weights = weights_.view({count_, topk_});
    if (!given_fp8_) return input;
    const bool packed = rows_ == LowLatencyRows::fp8_ue8m0;
    const uint32_t channels = packed ? 512 : 128;
    input.x = fp8_.view(DataType::float8_e4m3fn, {count_, hidden_});
    input.scales = scales_.view(packed ? DataType::int32 : DataType::float32,
                                {count_, (hidden_ + channels - 1) / channels});
    return input;
  }
  /// Returns the weights for combine.
  ConstTensorView weights() const {
    return weights_early_ ? ConstTensorView{} : weights_.view({count_, topk_});
  }

 private:
  template <class T>
  static std::vector<T> given(const LowLatencyCase& of, const Tokens& tokens,
                              std::vector<T> DeliveredRow::*what) {
    std::vector<T> all;
    for (uint32_t token = 0; of.given_fp8 && token < tokens.count; ++token) {
      const DeliveredRow row = of.delivered(tokens, token);
      all.insert(all.end(), (row.*what).begin(), (row.*what).end());
    }
    return all;
  }

  TokensOnDevice tokens_;
  DeviceArray<float> weights_;
  DeviceArray<uint8_t> fp8_;
  DeviceArray<uint32_t> scales_;
  uint32_t count_, hidden_, topk_;
  bool given_fp8_, weights_early_;
  LowLatencyRows rows_;
};

/// Waits for the stream and accepts errors about ids that the case has wrong on this rank.
inline void await_calls(LowLatency& exchange, const LowLatencyCase& of) {
  while (true) {
    try {
      return exchange.wait();
    } catch (const InvalidArgument& error) {
      if (error.argument != "topk_idx" || of.mistaken != exchange.world().rank()) throw;
    }
  }
}

/// Compares the results of a dispatch, once they have arrived. Nothing may have come from `absent`
/// ranks; the contents of rows from `unchecked` ranks do not matter.
inline std::string difference_after_dispatch(LowLatency& exchange, const LowLatencyCase& of,
                                             const std::vector<Tokens>& all,
                                             const LowLatencyReceived& received,
                                             const std::set<uint32_t>& absent = {},
                                             const std::set<uint32_t>& unchecked = {}) {
  await_calls(exchange, of);
  World& world = exchange.world();
  Accelerator& accelerator = accelerator_of(world);
  const Shape& shape = of.shape;
  const ExpectedBatch expected = expected_batch(shape, all, world.rank(), absent);
  const uint32_t slots = shape.ranks * exchange.options().tokens_max;
  const size_t row_bytes = size_t{shape.hidden} * (of.rows == LowLatencyRows::bf16 ? 2 : 1);
  std::string text =
      difference("counts",
                 read_back(accelerator, received.counts.as<int32_t>(), expected.counts.size()),
                 expected.counts) +
      difference("ranges",
                 read_back(accelerator, received.ranges.as<int32_t>(), expected.ranges.size()),
                 expected.ranges);
  const auto* const x = received.x.as<uint8_t>();
  const auto* const scales = received.scales.as<uint32_t>();
  for (uint32_t expert = 0; text.empty() && expert < expected.rows.size(); ++expert) {
    for (uint32_t slot = 0; text.empty() && slot < expected.rows[expert].size(); ++slot) {
      const Row row = expected.rows[expert][slot];
      if (unchecked.contains(row.source)) continue;
      const size_t at = size_t{expert} * slots + slot;
      const std::string name = fmt::format("expert {} slot {}", expert, slot);
      const DeliveredRow delivered = of.delivered(all[row.source], row.token);
      text +=
          difference(name, read_back(accelerator, x + at * row_bytes, row_bytes), delivered.data);
      text += difference(name + " source",
                         read_back(accelerator, received.source_token.as<int32_t>() + at, 1),
                         {static_cast<int32_t>(row.token)});
      const uint32_t words = static_cast<uint32_t>(delivered.scales.size());
      for (uint32_t word = 0; word < words; ++word)
        text += difference(
            fmt::format("{} scale {}", name, word),
            read_back(accelerator, scales + (size_t{expert} * words + word) * slots + slot, 1),
            {delivered.scales[word]});
    }
  }
  return text;
}

/// Stores the experts' results for a dispatch where combine reads them; all else is poison.
inline void run_experts(LowLatency& exchange, const LowLatencyCase& of,
                        const std::vector<Tokens>& all, const TensorView& y,
                        const std::set<uint32_t>& absent = {}) {
  World& world = exchange.world();
  const Shape& shape = of.shape;
  const uint32_t slots = shape.ranks * exchange.options().tokens_max;
  const ExpectedBatch expected = expected_batch(shape, all, world.rank(), absent);
  const uint32_t rank = world.rank();
  std::vector<uint16_t> values(size_t{shape.local_experts(rank)} * slots * shape.hidden, 0xffff);
  for (uint32_t expert = 0; expert < expected.rows.size(); ++expert)
    for (uint32_t slot = 0; slot < expected.rows[expert].size(); ++slot)
      for (uint32_t column = 0; column < shape.hidden; ++column)
        values[(size_t{expert} * slots + slot) * shape.hidden + column] = expert_value(
            shape.first_expert(rank) + expert, expected.rows[expert][slot], column, of.seed);
  accelerator_of(world).copy(y.data, values.data(), values.size() * 2, Stream{});
  await_all(accelerator_of(world));
}

/// A combine in progress and its results.
class CombineOnDevice {
 public:
  CombineOnDevice(LowLatency& exchange, const LowLatencyCase& of, const Tokens& mine)
      : out(accelerator_of(exchange.world()), size_t{mine.count} * of.shape.hidden),
        lost(accelerator_of(exchange.world()), size_t{mine.count}),
        count_(mine.count),
        hidden_(of.shape.hidden),
        logfmt_(of.logfmt) {
    out.poison();
    lost.poison();
  }
  LowLatencyCombine what(const ConstTensorView& y, const LowLatencyTokens& tokens) const {
    return {.y = y,
            .topk_weights = tokens.weights(),
            .out = out.view(DataType::bfloat16, {count_, hidden_}),
            .logfmt = logfmt_,
            .lost = lost.view({count_})};
  }

  DeviceArray<uint16_t> out;
  DeviceArray<int32_t> lost;

 private:
  uint32_t count_, hidden_;
  bool logfmt_;
};

inline std::string difference_of_token(const LowLatencyCase& of, const Tokens& mine, uint32_t rank,
                                       uint32_t token, int32_t lost,
                                       const std::vector<uint16_t>& out,
                                       const std::set<uint32_t>& without) {
  const ExpectedSum expected = expected_sum(of.shape, mine, rank, token, without, of.seed);
  const auto row = out.begin() + static_cast<std::ptrdiff_t>(size_t{token} * of.shape.hidden);
  for (uint32_t column = 0; of.logfmt && column < of.shape.hidden; ++column) {
    const float error = std::fabs(from_bf16(row[column]) - from_bf16(expected.row[column]));
    if (!(error <= expected.bounds[column]))
      return fmt::format("token {} column {} is off by {}, not {}", token, column, error,
                         expected.bounds[column]);
  }
  if (of.logfmt) return difference<int32_t>("lost", {lost}, {expected.lost});
  return difference<int32_t>(fmt::format("token {} lost", token), {lost}, {expected.lost}) +
         difference(fmt::format("token {}", token),
                    std::vector<uint16_t>(row, row + of.shape.hidden), expected.row);
}

inline std::string difference_after_combine(LowLatency& exchange, const LowLatencyCase& of,
                                            const Tokens& mine, const CombineOnDevice& combined,
                                            const std::set<uint32_t>& without = {}) {
  await_calls(exchange, of);
  const std::vector<uint16_t> out = combined.out.read();
  const std::vector<int32_t> lost = combined.lost.read();
  std::string text;
  for (uint32_t token = 0; text.empty() && token < mine.count; ++token)
    text = difference_of_token(of, mine, exchange.world().rank(), token, lost[token], out, without);
  return text;
}

/// Dispatches, runs the experts, and combines.
inline std::string difference_after_batch(LowLatency& exchange, const LowLatencyCase& of,
                                          const std::vector<Tokens>& all,
                                          const std::set<uint32_t>& absent = {}) {
  World& world = exchange.world();
  const Tokens& mine = all[world.rank()];
  const LowLatencyTokens tokens(world, of, of.given(mine, world.rank()));
  const LowLatencyCall call{.sms = of.sms, .hook = of.hooks};
  const LowLatencyReceived received = exchange.dispatch(tokens.input(), call);
  if (of.hooks) exchange.receive(received.handle);
  std::string text = difference_after_dispatch(exchange, of, all, received, absent);
  const TensorView y = exchange.combine_buffer(received.handle);
  run_experts(exchange, of, all, y, absent);
  const CombineOnDevice combined(exchange, of, mine);
  exchange.combine(combined.what(y, tokens), received.handle, call);
  if (of.hooks) exchange.receive(received.handle);
  return text + difference_after_combine(exchange, of, mine, combined, absent);
}

}  // namespace tokenyard::test
