/// How a warp looks at tokens: several a step, a lane for each expert that a token has picked. So
/// ids are read in whole lines, and what a token's picks have in common is found by warp::match,
/// for any number of ranks.
#pragma once

#include <algorithm>

#include "device/device.hpp"
#include "expert_parallel/throughput/dispatch.hpp"

namespace tokenyard::throughput {

struct TokenRange {
  uint32_t begin, end;
};

/// The tokens that a block counts.
DEVICE TokenRange tokens_of_block(const DispatchParams& params, uint32_t block) {
  const uint32_t each = params.shares.tokens_a_block;
  const uint32_t begin = std::min(block * each, params.tokens);
  return {begin, std::min(begin + each, params.tokens)};
}

/// The part of them that falls to one of its warps, 1 and up.
DEVICE TokenRange tokens_of_warp(const DispatchParams& params, uint32_t warp) {
  const TokenRange block = tokens_of_block(params, block::index());
  const uint32_t each = params.shares.tokens_a_warp;
  const uint32_t begin = std::min(block.begin + (warp - 1) * each, block.end);
  return {begin, std::min(begin + each, block.end)};
}

/// A lane's place in every step.
struct PickLane {
  uint32_t token;       ///< of the step's
  uint32_t pick;        ///< of the token's
  bool used;            ///< lanes left over when 32 is no multiple of topk
  uint32_t neighbours;  ///< lanes with picks of the same token

  DEVICE static PickLane mine(const DispatchParams& params) {
    const uint32_t lane = warp::lane(), topk = params.topk;
    const uint32_t token = lane / topk;
    const uint32_t first = token * topk;
    const uint32_t picks = topk == kWarpLanes ? warp::kAllLanes : (1u << topk) - 1;
    const bool used = token < params.shares.tokens_a_step;
    return {token, lane - first, used, used ? picks << first : 0};
  }
};

/// What the lane finds there.
struct Pick {
  static constexpr int64_t kNone = -1;
  uint32_t token = 0;    ///< on this rank
  bool present = false;  ///< whether this lane has a pick at all
  int64_t id = kNone;

  DEVICE bool valid(uint32_t experts) const {
    return static_cast<uint64_t>(id) < static_cast<uint64_t>(experts);
  }
};

DEVICE int64_t load_id(const DispatchParams& params, uint32_t token, uint32_t pick) {
  const size_t index = size_t{token} * params.topk + pick;
  if (params.idx_is_int64) return load_cached(static_cast<const int64_t*>(params.topk_idx) + index);
  return load_cached(static_cast<const int32_t*>(params.topk_idx) + index);
}

DEVICE Pick load_pick(const DispatchParams& params, const PickLane& lane, uint32_t first_token,
                      uint32_t end) {
  Pick pick{.token = first_token + lane.token};
  pick.present = lane.used && pick.token < end;
  if (pick.present) pick.id = load_id(params, pick.token, lane.pick);
  return pick;
}

/// A value that no other lane has and no pick makes, for lanes that shall match with nobody.
DEVICE uint32_t matches_nobody() {
  return 0xffffffffu - warp::lane();
}

/// Steps through a warp's tokens, ids loaded a few steps ahead. `body(pick)` is executed by all
/// lanes.
template <class Body>
DEVICE void for_each_step(const DispatchParams& params, const PickLane& lane, TokenRange tokens,
                          Body body) {
  constexpr uint32_t kAhead = 4;
  const uint32_t step = params.shares.tokens_a_step;
  for (uint32_t first = tokens.begin; first < tokens.end; first += kAhead * step) {
    Pick picks[kAhead];
    for (uint32_t i = 0; i < kAhead; ++i)
      picks[i] = load_pick(params, lane, first + i * step, tokens.end);
    for (uint32_t i = 0; i < kAhead; ++i)
      if (first + i * step < tokens.end) body(picks[i]);
  }
}

/// One lane for each rank that a token goes to: the lowest of those whose picks live there.
/// `rank`: of the pick, if it is valid.
DEVICE bool leads_to_rank(const DispatchParams& params, const PickLane& lane, bool valid,
                          uint32_t rank) {
  // The product stays below 2^32: see the limits that ExpertParallel checks.
  const uint32_t key = rank * params.shares.tokens_a_step + lane.token;
  const uint32_t same = warp::match(valid ? key : matches_nobody());
  return valid && (same & lanes_below()) == 0;
}

}  // namespace tokenyard::throughput
