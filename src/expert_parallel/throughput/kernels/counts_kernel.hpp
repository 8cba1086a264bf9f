/// The counting: how many rows a block has for each rank, told to every rank, and what that makes
/// of everybody's slots.
#pragma once

#include "device/unroll.hpp"
#include "expert_parallel/throughput/kernels/call_kernel.hpp"
#include "expert_parallel/throughput/kernels/dispatch_shared.hpp"
#include "expert_parallel/throughput/kernels/token_choices_kernel.hpp"

namespace tokenyard::throughput {

/// By one lane: some picks of its token. They are counted, and a token that no rank may accept is
/// noted; the first one of the block wins.
DEVICE void count_choices(const Dispatch& call, uint32_t token, const ChoicesHeld& choices,
                          uint32_t first) {
  const DispatchParams& params = call.params;
  bool twice = false, impossible = false;
  UNROLL
  for (uint32_t i = 0; i < ChoicesHeld::kChoices; ++i) {
    const uint32_t expert = choices.expert(params, i);
    impossible = impossible || (!choices.valid(params, i) && choices.ids[i] != Choice::kNone);
    UNROLL
    for (uint32_t before = 0; before < i; ++before)
      twice = twice || choices.expert(params, before) == expert;
    if (choices.valid(params, i))
      add<Order::relaxed, Scope::block>(call.tail.expert_tokens() + expert, 1);
  }
  for (uint32_t before = 0; before < first; ++before) {
    const int64_t id = load_id(params, token, before);
    UNROLL
    for (uint32_t i = 0; i < ChoicesHeld::kChoices; ++i)
      twice = twice || (choices.valid(params, i) && choices.ids[i] == id);
  }
  if (twice) [[unlikely]]
    call.refuse(token, RefusalKind::twice);
  if (impossible) [[unlikely]]
    call.refuse(token, RefusalKind::out_of_range);
}

/// Of 32 ranks from `first_rank` on, those that a pick's expert lives on.
DEVICE uint32_t ranks_of_choices(const DispatchParams& params, const ChoicesHeld& choices,
                                 uint32_t first_rank) {
  uint32_t ranks = 0;
  UNROLL
  for (uint32_t i = 0; i < ChoicesHeld::kChoices; ++i) {
    if (!choices.valid(params, i)) continue;
    const auto expert = static_cast<uint32_t>(choices.ids[i]);
    const uint32_t place = params.partition.rank_of(expert) - first_rank;
    if (place < kWarpLanes) ranks |= 1u << place;
  }
  return ranks;
}

/// By one warp that moves no rows: its tokens' rows a rank and tokens an expert, into the tail. The
/// route, or what is held of it, becomes "nowhere", or the row's number among those of this warp's
/// tokens.
DEVICE void count_tokens(const Dispatch& call, TokenChoices& tokens) {
  const DispatchParams& params = call.params;
  uint32_t* const rows = call.tail.warp_rows(warp::index());
  const uint32_t ranks = params.call.ranks;
  tokens.each([&](uint32_t token, bool present, auto each_choices) {
    each_choices([&](const ChoicesHeld& choices, uint32_t first) {
      if (present) count_choices(call, token, choices, first);
    });
    // A lane keeps a rank's count at a time: always the same lane the same rank's.
    for (uint32_t first_rank = 0; first_rank < ranks; first_rank += kWarpLanes) {
      uint32_t goes_to = 0;
      each_choices([&](const ChoicesHeld& choices, uint32_t) {
        goes_to |= ranks_of_choices(params, choices, first_rank);
      });
      const uint32_t mine = first_rank + warp::lane();
      uint32_t count = mine < ranks ? rows[mine] : 0;
      for (uint32_t i = 0; i < std::min(ranks - first_rank, uint32_t{kWarpLanes}); ++i) {
        const bool goes = (goes_to >> i & 1) != 0;
        const uint32_t going = warp::ballot(goes), earlier = warp::shuffle(count, i);
        const int32_t row =
            goes ? static_cast<int32_t>(earlier + population(going & lanes_below())) : -1;
        if (!present) {
          // No token of this warp's.
        } else if (int32_t* const held = call.held_row(token, first_rank + i)) {
          *held = row;
        } else {
          params.route[size_t{token} * ranks + first_rank + i] = row;
        }
        if (warp::lane() == i) count += population(going);
      }
      if (mine < ranks) rows[mine] = count;
    }
  });
  for (uint32_t rank = warp::lane(); rank < ranks; rank += kWarpLanes)
    add<Order::relaxed, Scope::block>(call.tail.block_rows() + rank, rows[rank]);
}

/// The pick because of which a token is refused.
DEVICE int64_t refused_id(const DispatchParams& params, uint32_t token, RefusalKind kind) {
  for (uint32_t choice = 0; choice < params.topk; ++choice) {
    const int64_t id = load_id(params, token, choice);
    if (kind == RefusalKind::out_of_range) {
      if (id != Choice::kNone && static_cast<uint64_t>(id) >= params.experts) return id;
    } else {
      for (uint32_t before = 0; before < choice; ++before)
        if (id != Choice::kNone && load_id(params, token, before) == id) return id;
    }
  }
  return Choice::kNone;
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
  const ThreadGroup thread_group = call.others();
  const uint32_t ranks = params.ranks;
  const bool refused = call.shared.refused_token != kNothingRefused;
  for (uint32_t i = thread_group.index; i < ranks * ranks; i += thread_group.size) {
    const uint32_t rank = i / ranks, destination = i % ranks;
    store<Order::relaxed, Scope::sys>(
        params.control.count(rank, params.rank, block::index(), destination),
        Stamped{call.epoch, refused ? kRefused : call.tail.block_rows()[destination]});
  }
  if (refused) {
    if (warp::index() == call.first_other()) publish_refusal(call);
    return;
  }
  const ExpertPartition& partition = call.params.partition;
  for (uint32_t expert = thread_group.index; expert < call.params.experts;
       expert += thread_group.size) {
    const uint32_t rank = partition.rank_of(expert), local = expert - partition.first_of(rank);
    store<Order::relaxed, Scope::sys>(
        params.control.expert(rank, params.rank, block::index(), local),
        Stamped{call.epoch, call.tail.expert_tokens()[expert]});
  }
}

/// A block's count of rows for a rank, once it is here; or nothing (of an older epoch), if that
/// source has no such block, as its hello says. Both are looked at together, since most of the time
/// goes into looking. Relaxed: nothing but the words is read because of them.
DEVICE Stamped await_count(const Dispatch& call, uint32_t source, uint32_t source_block,
                           uint32_t destination, bool& known) {
  const CallParams& params = call.params.call;
  const auto ready_word = params.control.ready_word(params.rank, source, ReadyWord::call);
  const auto word = params.control.count(params.rank, source, source_block, destination);
  Awaited what{.phase = static_cast<uint32_t>(Phase::dispatch_counts),
               .rank = source,
               .expected = call.epoch};
  Stamped count{};
  known = wait_until(call.deadline, what, [&] {
    const Stamped said = load<Order::relaxed, Scope::sys>(ready_word);
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
  const ThreadGroup thread_group = call.others();
  const uint32_t ranks = params.ranks, blocks_max = params.control.layout.blocks_max;
  uint32_t* const first_rows = call.tail.first_rows();
  uint32_t* const rows_from = call.tail.rows_from();
  uint32_t* const rows_on = call.tail.rows_on();
  bool all_known = true;
  for (uint32_t i = thread_group.index; i < ranks * blocks_max * ranks; i += thread_group.size) {
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

/// Some of this rank's experts: `first`, `first + stride`, ...
struct ExpertShare {
  uint32_t first = 0, stride = 1;
};

/// By a crew that knows the hellos: `body(slot, expert, tokens)` for each of some of this rank's
/// experts and each block of each rank that has tokens for it. A slot is a rank and a block.
/// Several words are asked for at a time: an answer takes a microsecond, and one after the other a
/// block would need more of them than small calls take in all. Whether all that this thread waited
/// for has come.
template <class Body>
DEVICE bool for_each_expert_count(const Dispatch& call, ExpertShare share, ThreadGroup thread_group,
                                  Body body) {
  const CallParams& params = call.params.call;
  const uint32_t local_experts = call.params.local_experts;
  const uint32_t blocks_max = params.control.layout.blocks_max;
  const uint32_t words_a_slot = params.control.layout.local_experts_max;
  // Threads beside one another read words beside one another, in as many lines as there are.
  if (share.first >= local_experts) return true;
  const uint32_t experts = (local_experts - share.first - 1) / share.stride + 1;
  const uint32_t columns = std::min(experts, thread_group.size),
                 lines = thread_group.size / columns;
  const uint32_t line = thread_group.index / columns;
  if (line >= lines) return true;
  constexpr uint32_t kAtOnce = 8;
  struct {
    Peer<Stamped> words;  // of the expert, a slot after the other
    uint32_t slot;        // the first that is asked for
    uint32_t exist;       // a bit for each that is
  } asked{};
  bool all_here = true;
  for (uint32_t column = thread_group.index - line * columns; column < experts; column += columns) {
    const uint32_t expert = share.first + column * share.stride;
    asked.words = params.control.expert(params.rank, 0, 0, expert);
    for (asked.slot = line; asked.slot < params.ranks * blocks_max; asked.slot += kAtOnce * lines) {
      asked.exist = 0;
      for (uint32_t i = 0; i < kAtOnce; ++i) {
        const uint32_t slot = asked.slot + i * lines, source = slot / blocks_max;
        if (source < params.ranks && slot - source * blocks_max < call.ready_words().blocks(source))
          asked.exist |= 1u << i;
      }
      Stamped seen[kAtOnce];
      Awaited what{.phase = static_cast<uint32_t>(Phase::dispatch_experts),
                   .rank = params.rank,
                   .expected = call.epoch};
      const bool here = wait_until(call.deadline, what, [&] {
        uint32_t missing = 0;
        UNROLL
        for (uint32_t i = 0; i < kAtOnce; ++i) {
          if ((asked.exist >> i & 1) == 0) continue;
          // Relaxed: nothing but the word is read because of it.
          seen[i] = load<Order::relaxed, Scope::sys>(
              asked.words + static_cast<std::ptrdiff_t>(asked.slot + i * lines) * words_a_slot);
        }
        UNROLL
        for (uint32_t i = 0; i < kAtOnce; ++i) {
          if ((asked.exist >> i & 1) == 0 || seen[i].epoch == call.epoch) continue;
          missing = i + 1;
          what.seen = seen[i].epoch;
        }
        if (missing != 0) what.rank = (asked.slot + (missing - 1) * lines) / blocks_max;
        return missing == 0;
      });
      all_here = all_here && here;
      UNROLL
      for (uint32_t i = 0; i < kAtOnce; ++i)
        if (here && (asked.exist >> i & 1) != 0 && seen[i].value != 0)
          body(asked.slot + i * lines, expert, seen[i].value);
    }
  }
  return all_here;
}

/// By one warp, after the block has met: notes a rank that has no places for its rows. All blocks
/// of all ranks find the same.
DEVICE void find_overflow(const Dispatch& call) {
  for (uint32_t rank = warp::lane(); rank < call.tail.ranks; rank += kWarpLanes) {
    const uint32_t rows = call.tail.rows_on()[rank];
    if (call.ready_words().places(rank, rows) < rows)
      fetch_min<Order::relaxed, Scope::block>(&call.shared.full_rank, rank);
  }
}

}  // namespace tokenyard::throughput
