/// How a warp looks at tokens: several a step, a lane for each expert that a token has picked. So
/// ids are read in whole lines, and what a token's picks have in common is found by shuffles among
/// neighbours, for any number of ranks. (warp::match would say it in one word, but takes its time
/// where all values differ.)
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
  uint32_t token;  ///< of the step's
  uint32_t pick;   ///< of the token's
  bool used;       ///< lanes left over when 32 is no multiple of topk

  DEVICE static PickLane mine(const DispatchParams& params) {
    const uint32_t lane = warp::lane(), topk = params.topk;
    const uint32_t token = lane / topk;
    return {token, lane - token * topk, token < params.shares.tokens_a_step};
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

/// A value that no other lane has and no pick makes, for lanes that shall match with nobody.
DEVICE uint32_t matches_nobody() {
  return 0xffffffffu - warp::lane();
}

/// Steps through a warp's tokens, ids loaded a few steps ahead. `body(pick)` is executed by all
/// lanes.
template <class Body>
DEVICE void for_each_step(const DispatchParams& params, const PickLane& lane, TokenRange tokens,
                          Body body) {
  constexpr uint32_t kAhead = 8;  // One wait for memory for 32 tokens of top-8, not two for 18.
  const uint32_t step = params.shares.tokens_a_step;
  const auto has_pick = [&](uint32_t token) { return lane.used && token < tokens.end; };
  for (uint32_t ahead = tokens.begin; ahead < tokens.end; ahead += kAhead * step) {
    int64_t ids[kAhead];
    for (uint32_t i = 0; i < kAhead; ++i) {
      const uint32_t token = ahead + i * step + lane.token;
      ids[i] = has_pick(token) ? load_id(params, token, lane.pick) : Pick::kNone;
    }
    for (uint32_t i = 0; i < kAhead && ahead + i * step < tokens.end; ++i) {
      const uint32_t token = ahead + i * step + lane.token;
      const Pick pick{.token = token, .present = has_pick(token), .id = ids[0]};
      // Moved along, so that no index is variable and ids stay in registers.
      for (uint32_t next = 1; next < kAhead; ++next) ids[next - 1] = ids[next];
      body(pick);
    }
  }
}

/// By all lanes: whether an earlier pick of this lane's token has the same value.
DEVICE bool seen_before(const DispatchParams& params, const PickLane& lane, uint32_t value) {
  bool seen = false;
  for (uint32_t distance = 1; distance < params.topk; ++distance) {
    const uint32_t earlier = warp::shuffle_up(value, distance);
    seen = seen || (distance <= lane.pick && earlier == value);
  }
  return seen;
}

/// By all lanes. One lane for each rank that a token goes to: the lowest of those whose picks live
/// there. `rank`: of the pick, if it is valid.
DEVICE bool leads_to_rank(const DispatchParams& params, const PickLane& lane, bool valid,
                          uint32_t rank) {
  return !seen_before(params, lane, valid ? rank : matches_nobody()) && valid;
}

/// By all lanes: those that lead to the same rank as this one, if it leads.
DEVICE uint32_t leaders_to(uint32_t ranks, bool leads, uint32_t rank) {
  constexpr uint32_t kBallotsMax = 8;
  if (ranks > kBallotsMax) return warp::match(leads ? rank : matches_nobody());
  uint32_t same = 0;
  for (uint32_t each = 0; each < ranks; ++each) {
    const uint32_t there = warp::ballot(leads && rank == each);
    if (rank == each) same = there;
  }
  return same;
}

}  // namespace tokenyard::throughput
