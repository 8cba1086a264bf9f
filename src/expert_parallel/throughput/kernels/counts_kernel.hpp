/// Counting. Each block publishes how many rows it has for each rank, and each of its expert counts
/// to the expert's rank; every block waits for all counts of its rank's window and computes its
/// first row on each rank from them. A count carries the epoch and releases no other data.
#pragma once

#include "device/unroll.hpp"
#include "expert_parallel/throughput/kernels/call_kernel.hpp"
#include "expert_parallel/throughput/kernels/dispatch_shared.hpp"
#include "expert_parallel/throughput/kernels/token_choices_kernel.hpp"

namespace tokenyard::throughput {

/// Counts some choices of a lane's token. Notes a token that no rank may accept; the first one of
/// the block wins.
TOKENYARD_DEVICE void count_choices(const Dispatch& call, uint32_t token,
                                    const ChoicesHeld& choices, uint32_t first) {
  const DispatchParams& params = call.params;
  bool twice = false, impossible = false;
  TOKENYARD_UNROLL
  for (uint32_t i = 0; i < ChoicesHeld::kChoices; ++i) {
    const uint32_t expert = choices.expert(params, i);
    impossible = impossible || (!choices.valid(params, i) && choices.ids[i] != Choice::kNone);
    TOKENYARD_UNROLL
    for (uint32_t before = 0; before < i; ++before)
      twice = twice || choices.expert(params, before) == expert;
    if (choices.valid(params, i))
      add<Order::relaxed, Scope::block>(call.tail.expert_tokens() + expert, 1);
  }
  for (uint32_t before = 0; before < first; ++before) {
    const int64_t id = load_id(params, token, before);
    TOKENYARD_UNROLL
    for (uint32_t i = 0; i < ChoicesHeld::kChoices; ++i)
      twice = twice || (choices.valid(params, i) && choices.ids[i] == id);
  }
  if (twice) [[unlikely]]
    call.refuse(token, RefusalKind::twice);
  if (impossible) [[unlikely]]
    call.refuse(token, RefusalKind::out_of_range);
}

/// Returns, of 32 ranks from `first_rank` on, those that hold an expert of these choices.
TOKENYARD_DEVICE uint32_t ranks_of_choices(const DispatchParams& params, const ChoicesHeld& choices,
                                           uint32_t first_rank) {
  uint32_t ranks = 0;
  TOKENYARD_UNROLL
  for (uint32_t i = 0; i < ChoicesHeld::kChoices; ++i) {
    if (!choices.valid(params, i)) continue;
    const auto expert = static_cast<uint32_t>(choices.ids[i]);
    const uint32_t place = params.partition.rank_of(expert) - first_rank;
    if (place < kWarpLanes) ranks |= 1u << place;
  }
  return ranks;
}

/// Counts the warp's tokens per rank and per expert into the tail. Called by each warp that moves
/// no rows. Leaves in the route, or in its held part, -1 or the row's number among this warp's rows
/// on that rank.
TOKENYARD_DEVICE void count_tokens(const Dispatch& call, TokenChoices& tokens) {
  const DispatchParams& params = call.params;
  uint32_t* const rows = call.tail.warp_rows(warp::index());
  const uint32_t ranks = params.call.ranks;
  tokens.each([&](uint32_t token, bool present, auto each_choices) {
    each_choices([&](const ChoicesHeld& choices, uint32_t first) {
      if (present) count_choices(call, token, choices, first);
    });
    // Each lane keeps the count of one rank at a time, always of the same ranks.
    for (uint32_t first_rank = 0; first_rank < ranks; first_rank += kWarpLanes) {
      uint32_t goes_to = 0;
      each_choices([&](const ChoicesHeld& choices, uint32_t) {
        goes_to |= ranks_of_choices(params, choices, first_rank);
      });
      // A choice of an absent rank's expert goes nowhere, as if it were -1.
      const uint32_t absent = params.call.absent.word_of(first_rank);
      if (absent != 0 && !mutated()) goes_to &= ~absent;
      const uint32_t mine = first_rank + warp::lane();
      uint32_t count = mine < ranks ? rows[mine] : 0;
      for (uint32_t i = 0; i < std::min(ranks - first_rank, uint32_t{kWarpLanes}); ++i) {
        const bool goes = (goes_to >> i & 1) != 0;
        const uint32_t going = warp::ballot(goes), earlier = warp::shuffle(count, i);
        const int32_t row =
            goes ? static_cast<int32_t>(earlier + population(going & lanes_below())) : -1;
        if (!present) {
          // No such token in this warp.
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

/// Returns the choice for which a token is refused.
TOKENYARD_DEVICE int64_t refused_id(const DispatchParams& params, uint32_t token,
                                    RefusalKind kind) {
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

/// Publishes to every rank why this block refuses the call. Called by one warp.
TOKENYARD_DEVICE void publish_refusal(const Dispatch& call) {
  const CallParams& params = call.params.call;
  const uint32_t token_and_kind = call.shared.refused_token;
  const int64_t id =
      refused_id(call.params, token_and_kind >> 2, static_cast<RefusalKind>(token_and_kind & 3));
  for (uint32_t rank = warp::lane(); rank < params.ranks; rank += kWarpLanes) {
    if (params.absent.contains(rank) && !mutated()) continue;
    const Peer<Refusal> refusal = params.control.refusal(rank, params.rank, block::index());
    const auto say = [&](Stamped Refusal::*word, uint64_t value) {
      // Relaxed: each word carries its epoch and releases no other data.
      store<Order::relaxed, Scope::sys>(refusal.at(word),
                                        Stamped{call.epoch, static_cast<uint32_t>(value)});
    };
    say(&Refusal::token_and_kind, token_and_kind);
    say(&Refusal::id_low, static_cast<uint64_t>(id));
    say(&Refusal::id_high, static_cast<uint64_t>(id) >> 32);
  }
}

/// Publishes the block's counts to every rank, and the tokens of each expert to its rank. Called by
/// all warps that move no rows, after they have synchronized. Relaxed: words release no other data.
TOKENYARD_DEVICE void publish_counts(const Dispatch& call) {
  const CallParams& params = call.params.call;
  const ThreadGroup thread_group = call.others();
  const uint32_t ranks = params.ranks;
  const bool refused = call.shared.refused_token != kNothingRefused;
  for (uint32_t i = thread_group.index; i < ranks * ranks; i += thread_group.size) {
    const uint32_t rank = i / ranks, destination = i % ranks;
    if (params.absent.contains(rank) && !mutated()) continue;
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
    if (params.absent.contains(rank) && !mutated()) continue;
    store<Order::relaxed, Scope::sys>(
        params.control.expert(rank, params.rank, block::index(), local),
        Stamped{call.epoch, call.tail.expert_tokens()[expert]});
  }
}

/// Waits for a block's count of rows for a rank. Returns a word of an older epoch if the source has
/// no such block, as its ready word says. Loads both words together because latency dominates.
/// Relaxed: neither releases other data.
TOKENYARD_DEVICE Stamped await_count(const Dispatch& call, uint32_t source, uint32_t source_block,
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

/// Adds up what all blocks of all ranks send. Called by all warps that move no rows, which then
/// synchronize. Returns false if a count that this thread awaits has not arrived.
TOKENYARD_DEVICE bool gather_counts(const Dispatch& call) {
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
    if (params.absent.contains(source) && !mutated()) continue;
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

/// A subset of this rank's experts: `first`, `first + stride`, ...
struct ExpertShare {
  uint32_t first = 0, stride = 1;
};

/// Calls `body(slot, expert, tokens)` for each expert of the share and each block of each rank that
/// has tokens for it; a slot is a rank and a block. Called by a thread group that knows the ready
/// words. Several words are in flight at a time: a load takes a microsecond, and a block that
/// loaded them one by one would need more than a small call takes in all. Returns false if a word
/// that this thread awaits has not arrived.
template <class Body>
TOKENYARD_DEVICE bool for_each_expert_count(const Dispatch& call, ExpertShare share,
                                            ThreadGroup thread_group, Body body) {
  const CallParams& params = call.params.call;
  const uint32_t local_experts = call.params.local_experts;
  const uint32_t blocks_max = params.control.layout.blocks_max;
  const uint32_t words_a_slot = params.control.layout.local_experts_max;
  // Neighbouring threads read neighbouring words, in as many lines as fit.
  if (share.first >= local_experts) return true;
  const uint32_t experts = (local_experts - share.first - 1) / share.stride + 1;
  const uint32_t columns = std::min(experts, thread_group.size),
                 lines = thread_group.size / columns;
  const uint32_t line = thread_group.index / columns;
  if (line >= lines) return true;
  constexpr uint32_t kAtOnce = 8;
  struct {
    Peer<Stamped> words;  // of the expert, one per slot
    uint32_t slot;        // first slot of the batch
    uint32_t exist;       // bit per slot of the batch that exists
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
        TOKENYARD_UNROLL
        for (uint32_t i = 0; i < kAtOnce; ++i) {
          if ((asked.exist >> i & 1) == 0) continue;
          // Relaxed: the word releases no other data.
          seen[i] = load<Order::relaxed, Scope::sys>(
              asked.words + static_cast<std::ptrdiff_t>(asked.slot + i * lines) * words_a_slot);
        }
        TOKENYARD_UNROLL
        for (uint32_t i = 0; i < kAtOnce; ++i) {
          if ((asked.exist >> i & 1) == 0 || seen[i].epoch == call.epoch) continue;
          missing = i + 1;
          what.seen = seen[i].epoch;
        }
        if (missing != 0) what.rank = (asked.slot + (missing - 1) * lines) / blocks_max;
        return missing == 0;
      });
      all_here = all_here && here;
      TOKENYARD_UNROLL
      for (uint32_t i = 0; i < kAtOnce; ++i)
        if (here && (asked.exist >> i & 1) != 0 && seen[i].value != 0)
          body(asked.slot + i * lines, expert, seen[i].value);
    }
  }
  return all_here;
}

/// Notes a rank that lacks places for its rows. Called by one warp, after the block has
/// synchronized. All blocks of all ranks find the same rank.
TOKENYARD_DEVICE void find_overflow(const Dispatch& call) {
  for (uint32_t rank = warp::lane(); rank < call.tail.ranks; rank += kWarpLanes) {
    const uint32_t rows = call.tail.rows_on()[rank];
    if (call.ready_words().places(rank, rows) < rows)
      fetch_min<Order::relaxed, Scope::block>(&call.shared.full_rank, rank);
  }
}

}  // namespace tokenyard::throughput
