/// The counting: how many rows a block has for each rank, told to every rank, and what that makes
/// of everybody's slots.
#pragma once

#include "expert_parallel/throughput/call_kernel.hpp"
#include "expert_parallel/throughput/dispatch_shared.hpp"
#include "expert_parallel/throughput/picks_kernel.hpp"

namespace tokenyard::throughput {

/// By one warp, 1 and up: its tokens' rows a rank and tokens an expert, into the tail. Tokens that
/// no rank may accept are noted, the first one wins. The route begins as "nowhere".
DEVICE void count_tokens(const Dispatch& call) {
  const DispatchParams& params = call.params;
  const PickLane lane = PickLane::mine(params);
  const TokenRange tokens = tokens_of_warp(params, warp::index());
  uint32_t* const rows = call.tail.warp_rows(warp::index());
  uint32_t* const expert_tokens = call.tail.expert_tokens();
  const uint32_t ranks = params.call.ranks;
  for (size_t i = size_t{tokens.begin} * ranks + warp::lane(); i < size_t{tokens.end} * ranks;
       i += kWarpLanes)
    params.route[i] = -1;
  for_each_step(params, lane, tokens, [&](const Pick& pick) {
    const bool valid = pick.valid(params.experts);
    const uint32_t id = static_cast<uint32_t>(pick.id);
    const bool twice = seen_before(params, lane, valid ? id : matches_nobody()) && valid;
    const bool impossible = pick.present && !valid && pick.id != Pick::kNone;
    if (twice) call.refuse(pick.token, RefusalKind::twice);
    if (impossible) call.refuse(pick.token, RefusalKind::out_of_range);
    const uint32_t rank = valid ? id / params.local_experts : 0;
    if (leads_to_rank(params, lane, valid, rank)) add<Order::relaxed, Scope::block>(rows + rank, 1);
    if (valid) add<Order::relaxed, Scope::block>(expert_tokens + id, 1);
  });
}

/// The pick because of which a token is refused.
DEVICE int64_t refused_id(const DispatchParams& params, uint32_t token, RefusalKind kind) {
  for (uint32_t pick = 0; pick < params.topk; ++pick) {
    const int64_t id = load_id(params, token, pick);
    if (kind == RefusalKind::out_of_range) {
      if (id != Pick::kNone && static_cast<uint64_t>(id) >= params.experts) return id;
    } else {
      for (uint32_t before = 0; before < pick; ++before)
        if (id != Pick::kNone && load_id(params, token, before) == id) return id;
    }
  }
  return Pick::kNone;
}

/// By one warp of a block that refuses: says why to every rank.
DEVICE void publish_refusal(const Dispatch& call) {
  const CallParams& params = call.params.call;
  const uint32_t token_and_kind = call.shared.refused_token;
  const int64_t id =
      refused_id(call.params, token_and_kind >> 2, static_cast<RefusalKind>(token_and_kind & 3));
  for (uint32_t rank = warp::lane(); rank < params.ranks; rank += kWarpLanes) {
    const Peer<Refusal> refusal = params.control.refusal(rank, params.rank, block::index());
    const auto say = [&](Stamped Refusal::*word, uint64_t value) {
      // Relaxed: each word says which call it belongs to and speaks of nothing else.
      store<Order::relaxed, Scope::sys>(refusal.at(word),
                                        Stamped{call.epoch, static_cast<uint32_t>(value)});
    };
    say(&Refusal::token_and_kind, token_and_kind);
    say(&Refusal::id_low, static_cast<uint64_t>(id));
    say(&Refusal::id_high, static_cast<uint64_t>(id) >> 32);
  }
}

DEVICE uint32_t rows_of_block(const Dispatch& call, uint32_t destination) {
  uint32_t rows = 0;
  for (uint32_t warp = 1; warp < call.tail.warps; ++warp)
    rows += call.tail.warp_rows(warp)[destination];
  return rows;
}

/// By the whole block, after it has met: every rank learns its counts, a rank of each of its
/// experts its tokens. Relaxed: the words are all there is to see.
DEVICE void publish_counts(const Dispatch& call) {
  const CallParams& params = call.params.call;
  const uint32_t ranks = params.ranks;
  const bool refused = call.shared.refused_token != kNothingRefused;
  for (uint32_t i = thread::index(); i < ranks * ranks; i += block::threads()) {
    const uint32_t rank = i / ranks, destination = i % ranks;
    store<Order::relaxed, Scope::sys>(
        params.control.count(rank, params.rank, block::index(), destination),
        Stamped{call.epoch, refused ? kRefused : rows_of_block(call, destination)});
  }
  if (refused) {
    if (warp::index() == 0) publish_refusal(call);
    return;
  }
  const uint32_t local_experts = call.params.local_experts;
  for (uint32_t expert = thread::index(); expert < call.params.experts; expert += block::threads())
    store<Order::relaxed, Scope::sys>(params.control.expert(expert / local_experts, params.rank,
                                                            block::index(), expert % local_experts),
                                      Stamped{call.epoch, call.tail.expert_tokens()[expert]});
}

/// By the whole block, which then meets: adds up what all blocks of all ranks send. False if the
/// call has failed.
DEVICE bool gather_counts(const Dispatch& call) {
  const CallParams& params = call.params.call;
  const uint32_t ranks = params.ranks, blocks_max = params.control.layout.blocks_max;
  uint32_t* const first_rows = call.tail.first_rows();
  uint32_t* const rows_from = call.tail.rows_from();
  uint32_t* const rows_on = call.tail.rows_on();
  for (uint32_t i = thread::index(); i < ranks * blocks_max * ranks; i += block::threads()) {
    const uint32_t slot = i / ranks, destination = i % ranks;
    const uint32_t source = slot / blocks_max, source_block = slot % blocks_max;
    if (source_block >= call.hellos().blocks(source)) continue;
    const Stamped count =
        call.await_word(Phase::dispatch_counts, source,
                        params.control.count(params.rank, source, source_block, destination));
    if (count.epoch != call.epoch) continue;
    if (count.value == kRefused) {
      fetch_min<Order::relaxed, Scope::block>(&call.shared.refusing_block, slot);
      continue;
    }
    const bool before_us =
        source < params.rank || (source == params.rank && source_block < block::index());
    if (before_us) add<Order::relaxed, Scope::block>(first_rows + destination, count.value);
    add<Order::relaxed, Scope::block>(rows_on + destination, count.value);
    if (destination == params.rank)
      add<Order::relaxed, Scope::block>(rows_from + source, count.value);
  }
  return !block::any(call.deadline.failed());
}

/// By the whole block, after it has met: notes a rank that has no places for its rows. All blocks
/// of all ranks find the same.
DEVICE void find_overflow(const Dispatch& call) {
  for (uint32_t rank = thread::index(); rank < call.tail.ranks; rank += block::threads()) {
    const uint32_t rows = call.tail.rows_on()[rank];
    if (call.hellos().places(rank, rows) < rows)
      fetch_min<Order::relaxed, Scope::block>(&call.shared.full_rank, rank);
  }
}

}  // namespace tokenyard::throughput
