/// Counts a rank's tokens and gives each its places: its number among this rank's rows for each
/// rank, and among its slots for each other host. By prefix sums over blocks, warps and tokens.
#pragma once

#include "device/apart.hpp"
#include "device/bulk.hpp"
#include "device/unroll.hpp"
#include "expert_parallel/internode/kernels/dispatch.hpp"
#include "expert_parallel/internode/kernels/rail_call_kernel.hpp"
#include "expert_parallel/throughput/kernels/counts_kernel.hpp"
#include "expert_parallel/throughput/kernels/token_choices_kernel.hpp"

namespace tokenyard::internode {

using throughput::Choice;
using throughput::ChoicesHeld;
using throughput::load_id;
using throughput::RefusalKind;
using throughput::TokenRange;

/// A dispatch as one thread sees it.
struct Dispatch {
  const DispatchParams& params;
  const DispatchTail& tail;
  const RailCall& call;

  TOKENYARD_DEVICE const throughput::DispatchParams& input() const { return params.dispatch; }
  TOKENYARD_DEVICE const Hosts& hosts() const { return params.rails.hosts; }
  TOKENYARD_DEVICE bool is_expert(int64_t id) const {
    return static_cast<uint64_t>(id) < input().experts;
  }
  /// Returns whether a choice brings its token to a rank: one of an absent rank's expert counts as
  /// none.
  TOKENYARD_DEVICE bool goes(int64_t id) const {
    return is_expert(id) &&
           !input().call.absent.contains(input().partition.rank_of(static_cast<uint32_t>(id)));
  }
  TOKENYARD_DEVICE bool refuses() const { return call.shared.refusing_block != kNone; }
  /// Returns the slots of this rank for a host: none if it refuses one of its tokens.
  TOKENYARD_DEVICE uint32_t slots_to(uint32_t host) const {
    return refuses() ? 0 : tail.totals()[params.rails.columns.host(host)];
  }
};

/// Returns the groups of tokens that this warp counts.
TOKENYARD_DEVICE TokenRange groups_of_warp(const DispatchParams& params) {
  const uint32_t groups = params.route.groups();
  const uint32_t begin = std::min(block::index() * params.groups_per_block, groups);
  const uint32_t end = std::min(begin + params.groups_per_block, groups);
  return throughput::part_of({begin, end}, warp::index(), warp::count());
}

/// Counts some choices of this lane's token, and notes where they bring it: `going`, a column each.
/// A token that no rank may accept is noted, too; the first one of the block wins.
TOKENYARD_DEVICE void count_choices(const Dispatch& dispatch, uint32_t token,
                                    const ChoicesHeld& choices, uint32_t first, uint32_t* going) {
  const throughput::DispatchParams& input = dispatch.input();
  const TokenColumns& columns = dispatch.params.rails.columns;
  // All tables' loads first: a load after an atomic would wait for it.
  uint32_t ranks[ChoicesHeld::kChoices], hosts[ChoicesHeld::kChoices];
  TOKENYARD_UNROLL
  for (uint32_t i = 0; i < ChoicesHeld::kChoices; ++i) {
    ranks[i] = hosts[i] = kNone;
    if (!choices.valid(input, i)) continue;
    const uint32_t rank = input.partition.rank_of(static_cast<uint32_t>(choices.ids[i]));
    if (input.call.absent.contains(rank)) continue;
    ranks[i] = rank;
    hosts[i] = load_cached(dispatch.hosts().host_of + rank);
  }
  bool twice = false, impossible = false;
  TOKENYARD_UNROLL
  for (uint32_t i = 0; i < ChoicesHeld::kChoices; ++i) {
    const uint32_t expert = choices.expert(input, i);
    impossible = impossible || (!choices.valid(input, i) && choices.ids[i] != Choice::kNone);
    TOKENYARD_UNROLL
    for (uint32_t before = 0; before < i; ++before)
      twice = twice || choices.expert(input, before) == expert;
    if (choices.valid(input, i))
      add<Order::relaxed, Scope::block>(dispatch.tail.block_counts() + columns.expert(expert), 1);
    if (ranks[i] == kNone) continue;
    const uint32_t bit = uint32_t{1} << warp::lane();
    // Relaxed: the warp synchronizes before it reads the bits.
    fetch_or<Order::relaxed, Scope::block>(going + ranks[i], bit);
    if (hosts[i] != dispatch.hosts().host)
      fetch_or<Order::relaxed, Scope::block>(going + columns.host(hosts[i]), bit);
  }
  for (uint32_t before = 0; before < first; ++before) {
    const int64_t id = load_id(input, token, before);
    TOKENYARD_UNROLL
    for (uint32_t i = 0; i < ChoicesHeld::kChoices; ++i)
      twice = twice || (choices.valid(input, i) && choices.ids[i] == id);
  }
  const auto refuse = [&](RefusalKind kind) {
    fetch_min<Order::relaxed, Scope::block>(&dispatch.call.shared.refused_token,
                                            token << 2 | static_cast<uint32_t>(kind));
  };
  if (twice) [[unlikely]]
    refuse(RefusalKind::twice);
  if (impossible) [[unlikely]]
    refuse(RefusalKind::out_of_range);
}

/// Counts a group of tokens, a lane per token. Leaves in the route the group's places among those
/// of this warp's tokens.
TOKENYARD_DEVICE void count_group(const Dispatch& dispatch, uint32_t group) {
  const uint32_t columns = dispatch.params.rails.columns.per_token();
  const RailRoute& route = dispatch.params.route;
  uint32_t* const counts = dispatch.tail.warp_counts(warp::index());
  uint32_t* const going = dispatch.tail.warp_going(warp::index());
  // Its first loads are under way from here on.
  throughput::TokenChoices tokens(
      dispatch.input(),
      {group << route.group_bits, std::min((group + 1) << route.group_bits, route.tokens)});
  for (uint32_t column = warp::lane(); column < columns; column += kWarpLanes) going[column] = 0;
  warp::sync();
  tokens.each([&](uint32_t token, bool present, auto each_choices) {
    each_choices([&](const ChoicesHeld& choices, uint32_t first) {
      if (present) count_choices(dispatch, token, choices, first, going);
    });
  });
  warp::sync();
  GroupPlaces* const places = route.places(group);
  for (uint32_t column = warp::lane(); column < columns; column += kWarpLanes) {
    const uint32_t count = counts[column];
    places[column] = {.first = count, .going = going[column]};
    counts[column] = count + population(going[column]);
  }
}

/// Publishes the block's counts to the rank's other blocks, after the block has counted. Relaxed:
/// each word carries its epoch, and releases no other data.
TOKENYARD_DEVICE void publish_block(const Dispatch& dispatch) {
  const TokenColumns& columns = dispatch.params.rails.columns;
  const RailCall& call = dispatch.call;
  Stamped* const words = call.rails.tables.counted(block::index());
  const uint32_t refused = call.shared.refused_token;
  int64_t id = 0;
  if (refused != kNone)
    id = throughput::refused_id(dispatch.input(), refused >> 2,
                                static_cast<RefusalKind>(refused & 3));
  for (uint32_t column = thread::index(); column < columns.count(); column += block::threads()) {
    uint32_t value = 0;
    if (column < columns.per_token()) {
      for (uint32_t warp = 0; warp < dispatch.tail.warps; ++warp) {
        uint32_t& of_warp = dispatch.tail.warp_counts(warp)[column];
        const uint32_t count = of_warp;
        of_warp = value;
        value += count;
      }
    } else if (column < columns.refusal(0)) {
      value = dispatch.tail.block_counts()[column];
    } else if (refused != kNone) {
      const uint32_t word = column - columns.refusal(0);
      value = word == 0   ? refused
              : word == 1 ? static_cast<uint32_t>(id)
                          : static_cast<uint32_t>(static_cast<uint64_t>(id) >> 32);
    }
    store<Order::relaxed, Scope::gpu>(words + column, Stamped{call.epoch(), value});
  }
}

/// Waits for a column of some blocks of this rank, whose loads are under way at once: they are far
/// away.
struct CountedBlocks {
  static constexpr uint32_t kAtOnce = 8;
  uint32_t values[kAtOnce];  ///< 0 for blocks that do not exist

  TOKENYARD_DEVICE CountedBlocks(const RailCall& call, uint32_t first_block, uint32_t column) {
    call.await_own(Phase::counts, [&] {
      bool all = true;
      TOKENYARD_UNROLL
      for (uint32_t i = 0; i < kAtOnce; ++i) {
        values[i] = 0;
        if (first_block + i >= grid::blocks()) continue;
        // Relaxed: the word carries its epoch, and releases no other data.
        const Stamped seen =
            load<Order::relaxed, Scope::gpu>(call.rails.tables.counted(first_block + i) + column);
        values[i] = seen.value;
        all = all && seen.epoch == call.epoch();
      }
      return all;
    });
  }
};

/// Sums the counts of the rank's blocks: those of experts, too, since a warp that sums them for its
/// greetings reads one word after the other. Called by the whole block, which then synchronizes.
TOKENYARD_DEVICE void gather_blocks(const Dispatch& dispatch) {
  const TokenColumns& columns = dispatch.params.rails.columns;
  for (uint32_t column = thread::index(); column <= columns.refusal(0);
       column += block::threads()) {
    uint32_t earlier = 0, total = 0, refusing = kNone;
    for (uint32_t first = 0; first < grid::blocks(); first += CountedBlocks::kAtOnce) {
      const CountedBlocks counted(dispatch.call, first, column);
      TOKENYARD_UNROLL
      for (uint32_t i = 0; i < CountedBlocks::kAtOnce; ++i) {
        if (first + i == block::index()) earlier = total;
        if (counted.values[i] != 0 && refusing == kNone) refusing = first + i;
        total += counted.values[i];
      }
    }
    if (column == columns.refusal(0)) {
      dispatch.call.shared.refusing_block = refusing;
      continue;
    }
    if (column < columns.per_token()) dispatch.tail.earlier()[column] = earlier;
    dispatch.tail.totals()[column] = total;
  }
}

/// Turns the numbers that count_group left in the route into places. Loads several at once: they
/// are far away. Called by each warp.
TOKENYARD_DEVICE void place_groups(const Dispatch& dispatch, TokenRange groups) {
  const uint32_t columns = dispatch.params.rails.columns.per_token();
  const uint32_t* const of_blocks = dispatch.tail.earlier();
  const uint32_t* const of_warps = dispatch.tail.warp_counts(warp::index());
  GroupPlaces* const places = dispatch.params.route.places(groups.begin);
  const uint32_t all = (groups.end - groups.begin) * columns;
  constexpr uint32_t kAtOnce = 8;
  for (uint32_t from = warp::lane(); from < all; from += kAtOnce * kWarpLanes) {
    uint32_t numbers[kAtOnce] = {};
    TOKENYARD_UNROLL
    for (uint32_t i = 0; i < kAtOnce; ++i)
      if (from + i * kWarpLanes < all) numbers[i] = places[from + i * kWarpLanes].first;
    TOKENYARD_UNROLL
    for (uint32_t i = 0; i < kAtOnce; ++i) {
      const uint32_t at = from + i * kWarpLanes;
      if (at < all)
        places[at].first = numbers[i] + of_blocks[at % columns] + of_warps[at % columns];
    }
  }
}

/// Counts and places the block's tokens, and knows the rank's totals. Called by the whole block.
TOKENYARD_DEVICE void count_tokens(const Dispatch& dispatch) {
  const TokenRange groups = groups_of_warp(dispatch.params);
  for (uint32_t i = thread::index(); i < dispatch.tail.zeroed_words(); i += block::threads())
    dispatch.tail.warp_counts(0)[i] = 0;
  block::sync();
  for (uint32_t group = groups.begin; group < groups.end; ++group) count_group(dispatch, group);
  block::sync();
  publish_block(dispatch);
  gather_blocks(dispatch);
  block::sync();
  place_groups(dispatch, groups);
  // Before copies into memory that was counted in.
  fence_async_shared();
  block::sync();
  // Release: orders the places, for other blocks that claim these tokens.
  if (thread::index() == 0)
    store<Order::release, Scope::gpu>(dispatch.call.rails.tables.routed(block::index()),
                                      dispatch.call.epoch());
}

}  // namespace tokenyard::internode
