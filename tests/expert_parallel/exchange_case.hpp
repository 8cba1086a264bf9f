/// The exchange of a test, and a rank's tokens on its device.
#pragma once

#include <algorithm>
#include <vector>

#include "expert_parallel/rank_memory.hpp"
#include "expert_parallel/reference.hpp"
#include "tokenyard/expert_parallel.hpp"

namespace tokenyard::test {

/// The exchange that all ranks of a test make.
struct ExchangeCase {
  Shape shape;
  std::vector<uint32_t> tokens;  ///< [ranks]
  Picking picking = {};
  bool idx_is_int64 = true;
  uint32_t sms = 0;
  uint32_t seed = 1;

  uint32_t tokens_max() const { return 1 + *std::max_element(tokens.begin(), tokens.end()); }
  ExpertParallelOptions options() const {
    return {.experts = shape.experts,
            .hidden = shape.hidden,
            .topk = shape.topk,
            .tokens_max = tokens_max(),
            .sms = sms};
  }
  std::vector<Tokens> draw() const {
    std::mt19937 random(seed);
    std::vector<Tokens> all;
    for (const uint32_t count : tokens) all.push_back(random_tokens(shape, count, picking, random));
    return all;
  }
};

/// A rank's tokens in its device's memory.
class TokensOnDevice {
 public:
  TokensOnDevice(Accelerator& accelerator, const Tokens& tokens, bool idx_is_int64)
      : count_(tokens.count),
        idx_is_int64_(idx_is_int64),
        x_(accelerator, tokens.x),
        ids64_(accelerator, tokens.ids),
        ids32_(accelerator, std::vector<int32_t>(tokens.ids.begin(), tokens.ids.end())),
        weights_(accelerator, tokens.weights) {}

  DispatchInput input() const {
    return {.x = x_.data(),
            .topk_idx = idx_is_int64_ ? static_cast<const void*>(ids64_.data()) : ids32_.data(),
            .idx_is_int64 = idx_is_int64_,
            .topk_weights = weights_.data(),
            .tokens = count_};
  }

 private:
  uint32_t count_;
  bool idx_is_int64_;
  DeviceArray<uint16_t> x_;
  DeviceArray<int64_t> ids64_;
  DeviceArray<int32_t> ids32_;
  DeviceArray<float> weights_;
};

}  // namespace tokenyard::test
