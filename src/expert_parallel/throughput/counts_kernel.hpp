/// The counting: how many rows a block has for each rank, told to every rank, and what that makes
/// of everybody's slots.
#pragma once

#include "device/unroll.hpp"
#include "expert_parallel/throughput/call_kernel.hpp"
#include "expert_parallel/throughput/dispatch_shared.hpp"
#include "expert_parallel/throughput/picks_kernel.hpp"

namespace tokenyard::throughput {

/// By one warp that moves no rows: its tokens' rows a rank and tokens an expert, into the tail.
/// Tokens that no rank may accept are noted, the first one wins. The route becomes "nowhere", or
/// the row's number among those of this warp's tokens.
DEVICE void count_tokens(const Dispatch& call, PickSteps& steps) {
  const DispatchParams& params = call.params;
  const TokenRange tokens = steps.tokens();
  uint32_t* const rows = call.tail.warp_rows(warp::index());
  uint32_t* const expert_tokens = call.tail.expert_tokens();
  const uint32_t ranks = params.call.ranks;
  const HomeRank home(params);
  for (size_t i = size_t{tokens.begin} * ranks + warp::lane(); i < size_t{tokens.end} * ranks;
       i += kWarpLanes)
    params.route[i] = -1;
  warp::sync();
  steps.each([&](const Pick& pick) {
    const bool valid = pick.valid(params.experts);
    const uint32_t id = static_cast<uint32_t>(pick.id);
    const uint32_t rank = valid ? home.of(id) : 0;
    const auto earlier = EarlierPicks::of(params, steps.lane(), valid, id, rank);
    const bool twice = valid && earlier.have_expert;
    const bool impossible = pick.present && !valid && pick.id != Pick::kNone;
    if (twice) call.refuse(pick.token, RefusalKind::twice);
    if (impossible) call.refuse(pick.token, RefusalKind::out_of_range);
    if (valid) add<Order::relaxed, Scope::block>(expert_tokens + id, 1);
    // One lane for each rank that a token goes to: the lowest of those whose picks live there. Of
    // the step's tokens that go to the same rank, lower lanes hold the earlier ones.
    const bool leads = valid && !earlier.have_rank;
    const uint32_t same = leaders_to(ranks, leads, rank);
    if (leads)
      params.route[size_t{pick.token} * ranks + rank] =
          static_cast<int32_t>(rows[rank] + population(same & lanes_below()));
    warp::sync();
    if (leads && (same & lanes_below()) == 0) rows[rank] += population(same);
    warp::sync();
  });
  for (uint32_t rank = warp::lane(); rank < ranks; rank += kWarpLanes)
    add<Order::relaxed, Scope::block>(call.tail.block_rows() + rank, rows[rank]);
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

/// By all warps that move no rows, after they have met: every rank learns its counts, a rank of
/// each of its experts its tokens. Relaxed: the words are all there is to see.
DEVICE void publish_counts(const Dispatch& call) {
  const CallParams& params = call.params.call;
  const Crew crew = call.others();
  const uint32_t ranks = params.ranks;
  const bool refused = call.shared.refused_token != kNothingRefused;
  for (uint32_t i = crew.index; i < ranks * ranks; i += crew.size) {
    const uint32_t rank = i / ranks, destination = i % ranks;
    store<Order::relaxed, Scope::sys>(
        params.control.count(rank, params.rank, block::index(), destination),
        Stamped{call.epoch, refused ? kRefused : call.tail.block_rows()[destination]});
  }
  if (refused) {
    if (warp::index() == call.first_other()) publish_refusal(call);
    return;
  }
  const uint32_t local_experts = call.params.local_experts;
  for (uint32_t expert = crew.index; expert < call.params.experts; expert += crew.size)
    store<Order::relaxed, Scope::sys>(params.control.expert(expert / local_experts, params.rank,
                                                            block::index(), expert % local_experts),
                                      Stamped{call.epoch, call.tail.expert_tokens()[expert]});
}

/// A block's count of rows for a rank, once it is here; or nothing (of an older epoch), if that
/// source has no such block, as its hello says. Both are looked at together, since most of the time
/// goes into looking. Relaxed: nothing but the words is read because of them.
DEVICE Stamped await_count(const Dispatch& call, uint32_t source, uint32_t source_block,
                           uint32_t destination, bool& known) {
  const CallParams& params = call.params.call;
  const auto hello = params.control.hello(params.rank, source, HelloWord::call);
  const auto word = params.control.count(params.rank, source, source_block, destination);
  Awaited what{.phase = static_cast<uint32_t>(Phase::dispatch_counts),
               .rank = source,
               .expected = call.epoch};
  Stamped count{};
  known = wait_until(call.deadline, what, [&] {
    const Stamped said = load<Order::relaxed, Scope::sys>(hello);
    count = load<Order::relaxed, Scope::sys>(word);
    what.seen = count.epoch;
    return said.epoch == call.epoch &&
           (count.epoch == call.epoch || source_block >= CallWord{said.value}.blocks());
  });
  return count;
}

/// By all warps that move no rows, which then meet: adds up what all blocks of all ranks send.
/// Whether all that this thread waited for has come.
DEVICE bool gather_counts(const Dispatch& call) {
  const CallParams& params = call.params.call;
  const Crew crew = call.others();
  const uint32_t ranks = params.ranks, blocks_max = params.control.layout.blocks_max;
  uint32_t* const first_rows = call.tail.first_rows();
  uint32_t* const rows_from = call.tail.rows_from();
  uint32_t* const rows_on = call.tail.rows_on();
  bool all_known = true;
  for (uint32_t i = crew.index; i < ranks * blocks_max * ranks; i += crew.size) {
    const uint32_t slot = i / ranks, destination = i % ranks;
    const uint32_t source = slot / blocks_max, source_block = slot % blocks_max;
    bool known = false;
    const Stamped count = await_count(call, source, source_block, destination, known);
    all_known = all_known && known;
    if (!known || count.epoch != call.epoch) continue;
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
  return all_known;
}

/// By a crew that knows the hellos: `body(slot, expert, tokens)` for each of this rank's experts
/// and each block of each rank that has tokens for it. A slot is a rank and a block. Several words
/// are asked for at a time: an answer takes a microsecond, and one after the other a block would
/// need more of them than small calls take in all.
/// Whether all that this thread waited for has come.
template <class Body>
DEVICE bool for_each_expert_count(const Dispatch& call, Crew crew, Body body) {
  const CallParams& params = call.params.call;
  const uint32_t local_experts = call.params.local_experts;
  const uint32_t blocks_max = params.control.layout.blocks_max;
  const uint32_t words = params.ranks * blocks_max * local_experts;
  struct Word {
    uint32_t slot, expert;
    Stamped seen;
  };
  constexpr uint32_t kAtOnce = 8;
  bool all_here = true;
  for (uint32_t first = crew.index; first < words; first += kAtOnce * crew.size) {
    Word asked[kAtOnce] = {};
    const auto word_of = [&](const Word& word) {
      return params.control.expert(params.rank, word.slot / blocks_max, word.slot % blocks_max,
                                   word.expert);
    };
    const auto exists = [&](uint32_t i) {
      const uint32_t slot = asked[i].slot;
      return first + i * crew.size < words &&
             slot % blocks_max < call.hellos().blocks(slot / blocks_max);
    };
    UNROLL
    for (uint32_t i = 0; i < kAtOnce; ++i) {
      const uint32_t index = std::min(first + i * crew.size, words - 1);
      asked[i] = {.slot = index / local_experts, .expert = index % local_experts, .seen = {}};
      // Relaxed: nothing but the word is read because of it.
      if (exists(i)) asked[i].seen = load<Order::relaxed, Scope::sys>(word_of(asked[i]));
    }
    UNROLL
    for (uint32_t i = 0; i < kAtOnce; ++i) {
      if (!exists(i)) continue;
      Stamped tokens = asked[i].seen;
      if (tokens.epoch != call.epoch)
        tokens =
            call.await_word(Phase::dispatch_experts, asked[i].slot / blocks_max, word_of(asked[i]));
      const bool here = tokens.epoch == call.epoch;
      all_here = all_here && here;
      if (here && tokens.value != 0) body(asked[i].slot, asked[i].expert, tokens.value);
    }
  }
  return all_here;
}

/// By one warp, after the block has met: notes a rank that has no places for its rows. All blocks
/// of all ranks find the same.
DEVICE void find_overflow(const Dispatch& call) {
  for (uint32_t rank = warp::lane(); rank < call.tail.ranks; rank += kWarpLanes) {
    const uint32_t rows = call.tail.rows_on()[rank];
    if (call.hellos().places(rank, rows) < rows)
      fetch_min<Order::relaxed, Scope::block>(&call.shared.full_rank, rank);
  }
}

}  // namespace tokenyard::throughput
