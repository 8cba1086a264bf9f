/// Walks a warp over its tokens with one lane per choice, several tokens per step, so that its
/// loads and stores cover whole lines. If a token has more choices than a warp has lanes, each pass
/// takes 32 of them.
#pragma once

#include <algorithm>

#include "device/device.hpp"
#include "device/unroll.hpp"
#include "expert_parallel/throughput/kernels/dispatch.hpp"

namespace tokenyard::throughput {

struct TokenRange {
  uint32_t begin, end;
};

/// Returns the tokens that a block counts.
TOKENYARD_DEVICE TokenRange tokens_of_block(const DispatchParams& params, uint32_t block) {
  const uint32_t each = params.shares.tokens_a_block;
  const uint32_t begin = std::min(block * each, params.tokens);
  return {begin, std::min(begin + each, params.tokens)};
}

/// Returns one of `parts` parts of a range.
TOKENYARD_DEVICE TokenRange part_of(TokenRange range, uint32_t part, uint32_t parts) {
  const uint32_t each = (range.end - range.begin + parts - 1) / parts;
  const uint32_t begin = std::min(range.begin + part * each, range.end);
  return {begin, std::min(begin + each, range.end)};
}

/// Returns the tokens that this warp counts and whose metadata it sends: none if it moves rows.
TOKENYARD_DEVICE TokenRange tokens_of_warp(const DispatchParams& params) {
  if (warp::index() < params.movers) return {0, 0};
  return part_of(tokens_of_block(params, block::index()), warp::index() - params.movers,
                 block::threads() / kWarpLanes - params.movers);
}

/// A lane's position in every step of a pass that begins at `first_choice` of each token.
struct ChoiceLane {
  uint32_t token;   ///< index within the step
  uint32_t choice;  ///< index within the token
  bool used;        ///< false for lanes left over if 32 is not a multiple of topk

  TOKENYARD_DEVICE static ChoiceLane mine(const DispatchParams& params, uint32_t first_choice) {
    const uint32_t lane = warp::lane(), topk = params.topk;
    const uint32_t token = topk <= kWarpLanes ? lane / topk : 0;
    const uint32_t choice = first_choice + lane - token * topk;
    return {token, choice, token < params.shares.tokens_a_step && choice < topk};
  }
};

/// The choice at that position.
struct Choice {
  static constexpr int64_t kNone = -1;
  uint32_t token = 0;    ///< index on this rank
  bool present = false;  ///< whether this lane has a choice at all
  int64_t id = kNone;

  TOKENYARD_DEVICE bool valid(uint32_t experts) const {
    return static_cast<uint64_t>(id) < static_cast<uint64_t>(experts);
  }
};

TOKENYARD_DEVICE int64_t load_id(const DispatchParams& params, uint32_t token, uint32_t choice) {
  const size_t index = size_t{token} * params.topk + choice;
  if (params.idx_is_int64) return load_cached(static_cast<const int64_t*>(params.topk_idx) + index);
  return load_cached(static_cast<const int32_t*>(params.topk_idx) + index);
}

/// A warp's pass over its tokens. Ids are loaded a few steps ahead; the constructor issues the
/// first loads, so that other work hides their latency.
class ChoiceSteps {
 public:
  TOKENYARD_DEVICE ChoiceSteps(const DispatchParams& params, TokenRange tokens,
                               uint32_t first_choice)
      : params_(params), tokens_(tokens), lane_(ChoiceLane::mine(params, first_choice)) {
    load_from(tokens.begin);
  }

  TOKENYARD_DEVICE const ChoiceLane& lane() const { return lane_; }
  TOKENYARD_DEVICE TokenRange tokens() const { return tokens_; }

  /// Calls `body(choice)` on all lanes for each step. May be called once.
  template <class Body>
  TOKENYARD_DEVICE void each(Body body) {
    const uint32_t step = params_.shares.tokens_a_step;
    for (uint32_t ahead = tokens_.begin; ahead < tokens_.end; ahead += kAhead * step) {
      if (ahead != tokens_.begin) load_from(ahead);
      for (uint32_t i = 0; i < kAhead && ahead + i * step < tokens_.end; ++i) {
        const uint32_t token = ahead + i * step + lane_.token;
        const Choice choice{.token = token, .present = has_choice(token), .id = ids_[0]};
        // Shifted, so that every index is constant and ids stay in registers.
        TOKENYARD_UNROLL
        for (uint32_t next = 1; next < kAhead; ++next) ids_[next - 1] = ids_[next];
        body(choice);
      }
    }
  }

 private:
  static constexpr uint32_t kAhead = 8;  // One memory latency per 32 tokens of top-8.

  TOKENYARD_DEVICE bool has_choice(uint32_t token) const {
    return lane_.used && token < tokens_.end;
  }

  TOKENYARD_DEVICE void load_from(uint32_t ahead) {
    TOKENYARD_UNROLL
    for (uint32_t i = 0; i < kAhead; ++i) {
      const uint32_t token = ahead + i * params_.shares.tokens_a_step + lane_.token;
      ids_[i] = has_choice(token) ? load_id(params_, token, lane_.choice) : Choice::kNone;
    }
  }

  const DispatchParams& params_;
  const TokenRange tokens_;
  const ChoiceLane lane_;
  int64_t ids_[kAhead];
};

}  // namespace tokenyard::throughput
