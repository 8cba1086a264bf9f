/// The exchange of a test, and a rank's tokens on its device.
#pragma once

#include <algorithm>
#include <vector>

#include "expert_parallel/mapped.hpp"
#include "expert_parallel/rank_memory.hpp"
#include "expert_parallel/reference.hpp"
#include "tokenyard/expert_parallel.hpp"

namespace tokenyard::test {

/// The exchange that all ranks of a test make.
struct ExchangeCase {
  Shape shape;
  std::vector<uint32_t> tokens;  ///< [ranks]
  Mapped map = {};               ///< `shape` counts places as experts
  Picking picking = {};
  bool idx_is_int64 = true;
  uint32_t sms = 0;
  uint32_t seed = 1;
  std::vector<uint32_t> absent = {};  ///< ranks that no process fills; they have no tokens

  bool is_absent(uint32_t rank) const {
    return std::find(absent.begin(), absent.end(), rank) != absent.end();
  }
  std::vector<uint32_t> present() const {
    std::vector<uint32_t> ranks;
    for (uint32_t rank = 0; rank < shape.ranks; ++rank)
      if (!is_absent(rank)) ranks.push_back(rank);
    return ranks;
  }
  uint32_t tokens_max() const { return 1 + *std::max_element(tokens.begin(), tokens.end()); }
  ExpertParallelOptions options() const {
    const bool spare = map.given() && shape.experts % shape.ranks == 0;
    return {.experts = spare ? map.experts : shape.experts,
            .places_per_rank = spare ? shape.local_experts() : 0,
            .hidden = shape.hidden,
            .topk = shape.topk,
            .tokens_max = tokens_max(),
            .sms = sms};
  }
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
    for (const uint32_t rank : absent) all[rank] = {};
    return all;
  }
  /// Returns what tokens count as: a choice of an absent rank's expert counts as none.
  std::vector<Tokens> counted(std::vector<Tokens> all) const {
    for (Tokens& tokens : all)
      for (int64_t& id : tokens.ids)
        for (const uint32_t rank : absent)
          if (shape.holds(rank, id)) id = -1;
    return all;
  }
};

/// A rank's tokens in its device's memory.
class TokensOnDevice {
 public:
  TokensOnDevice(Accelerator& accelerator, const Tokens& tokens, bool idx_is_int64)
      : count_(tokens.count),
        hidden_(count_ == 0 ? 0 : tokens.x.size() / count_),
        topk_(count_ == 0 ? 0 : tokens.ids.size() / count_),
        idx_is_int64_(idx_is_int64),
        x_(accelerator, tokens.x),
        ids64_(accelerator, tokens.ids),
        ids32_(accelerator, std::vector<int32_t>(tokens.ids.begin(), tokens.ids.end())),
        weights_(accelerator, tokens.weights) {}

  DispatchInput input() const {
    if (count_ == 0) return {};
    return {.x = x_.view(DataType::bfloat16, {count_, hidden_}),
            .topk_idx = idx_is_int64_ ? ids64_.view({count_, topk_}) : ids32_.view({count_, topk_}),
            .topk_weights = weights_.view({count_, topk_})};
  }
  uint32_t count() const { return count_; }

 private:
  uint32_t count_;
  uint64_t hidden_, topk_;  ///< 0 without tokens
  bool idx_is_int64_;
  DeviceArray<uint16_t> x_;
  DeviceArray<int64_t> ids64_;
  DeviceArray<int32_t> ids32_;
  DeviceArray<float> weights_;
};

/// Has a dispatch send rows of another format, and their scales, which lie there.
inline void give_rows(DispatchInput& input, const RowFormat& format, uint32_t tokens,
                      uint32_t hidden, const void* x, const void* scales) {
  const uint32_t columns = format.type == DataType::uint8 ? format.row_bytes : hidden;
  const uint32_t words = format.scale_words * (format.scale_type == DataType::uint8 ? 4 : 1);
  input.x = {x, format.type, {tokens, columns}};
  input.scales = {};
  if (words > 0) input.scales = {scales, format.scale_type, {tokens, words}};
  input.scale_order = format.scale_order;
}

/// Returns the memory of an exchange that exists, and of a dispatch of it.
inline ExpertParallel::Memory memory_of(const ExpertParallel& exchange, uint32_t tokens,
                                        uint32_t rows) {
  ExpertParallelOptions options = exchange.options();
  options.sms = exchange.sms();
  return ExpertParallel::memory(options, exchange.world().size(), tokens, rows);
}

}  // namespace tokenyard::test
