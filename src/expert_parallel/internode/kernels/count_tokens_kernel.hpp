/// Counts a rank's tokens and gives each its places: its number among this rank's rows for each
/// rank, and among its slots for each other host. By prefix sums over blocks, warps and tokens.
#pragma once

#include "device/apart.hpp"
#include "device/unroll.hpp"
#include "expert_parallel/internode/kernels/dispatch.hpp"
#include "expert_parallel/internode/kernels/rail_call_kernel.hpp"
#include "expert_parallel/throughput/kernels/counts_kernel.hpp"

namespace tokenyard::internode {

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

/// Returns the tokens that this warp counts.
TOKENYARD_DEVICE TokenRange tokens_of_warp(const DispatchParams& params) {
  const uint32_t begin = std::min(block::index() * params.tokens_per_block, params.dispatch.tokens);
  const uint32_t end = std::min(begin + params.tokens_per_block, params.dispatch.tokens);
  return throughput::part_of({begin, end}, warp::index(), warp::count());
}

/// Checks a token's choices, and counts its experts.
TOKENYARD_DEVICE void count_choices(const Dispatch& dispatch, uint32_t token) {
  const throughput::DispatchParams& input = dispatch.input();
  const auto refuse = [&](RefusalKind kind) {
    fetch_min<Order::relaxed, Scope::block>(&dispatch.call.shared.refused_token,
                                            token << 2 | static_cast<uint32_t>(kind));
  };
  for (uint32_t choice = 0; choice < input.topk; ++choice) {
    const int64_t id = load_id(input, token, choice);
    if (id == throughput::Choice::kNone) continue;
    if (!dispatch.is_expert(id)) {
      refuse(RefusalKind::out_of_range);
      continue;
    }
    for (uint32_t before = 0; before < choice; ++before)
      if (load_id(input, token, before) == id) refuse(RefusalKind::twice);
    const uint32_t column = dispatch.params.rails.columns.expert(static_cast<uint32_t>(id));
    add<Order::relaxed, Scope::block>(dispatch.tail.block_counts() + column, 1);
  }
}

/// Returns, of 32 columns from `first` on, those of a token.
TOKENYARD_DEVICE uint32_t columns_of(const Dispatch& dispatch, uint32_t token, uint32_t first) {
  const throughput::DispatchParams& input = dispatch.input();
  uint32_t columns = 0;
  for (uint32_t choice = 0; choice < input.topk; ++choice) {
    const int64_t id = load_id(input, token, choice);
    if (!dispatch.goes(id)) continue;
    const uint32_t rank = input.partition.rank_of(static_cast<uint32_t>(id));
    const uint32_t host = dispatch.hosts().host_of[rank];
    const uint32_t of_rank = rank - first;
    const uint32_t of_host = dispatch.params.rails.columns.host(host) - first;
    if (of_rank < kWarpLanes) columns |= 1u << of_rank;
    if (of_host < kWarpLanes && host != dispatch.hosts().host) columns |= 1u << of_host;
  }
  return columns;
}

/// Counts the warp's tokens, a lane per token. Leaves in the route each token's number among those
/// of this warp.
TOKENYARD_DEVICE void count_warp_tokens(const Dispatch& dispatch, TokenRange tokens) {
  const uint32_t columns = dispatch.params.rails.columns.per_token();
  uint32_t* const counts = dispatch.tail.warp_counts(warp::index());
  for (uint32_t from = tokens.begin; from < tokens.end; from += kWarpLanes) {
    const uint32_t token = from + warp::lane();
    const bool present = token < tokens.end;
    if (present) count_choices(dispatch, token);
    for (uint32_t first = 0; first < columns; first += kWarpLanes) {
      const uint32_t goes_to = present ? columns_of(dispatch, token, first) : 0;
      const uint32_t mine = first + warp::lane();
      // Each lane keeps the count of one column.
      uint32_t count = mine < columns ? counts[mine] : 0;
      for (uint32_t i = 0; i < std::min(columns - first, uint32_t{kWarpLanes}); ++i) {
        const bool goes = (goes_to >> i & 1) != 0;
        const uint32_t going = warp::ballot(goes), earlier = warp::shuffle(count, i);
        if (present)
          dispatch.params.route.places(token)[first + i] =
              goes ? static_cast<int32_t>(earlier + population(going & lanes_below())) : -1;
        if (warp::lane() == i) count += population(going);
      }
      if (mine < columns) counts[mine] = count;
    }
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

/// Returns a column of a block of this rank, once it has counted.
TOKENYARD_DEVICE uint32_t counted_in(const RailCall& call, uint32_t of_block, uint32_t column) {
  const Stamped* const word = call.rails.tables.counted(of_block) + column;
  Stamped seen{};
  call.await_own(Phase::counts, [&] {
    seen = load<Order::relaxed, Scope::gpu>(word);
    return seen.epoch == call.epoch();
  });
  return seen.value;
}

/// Sums the counts of the rank's blocks: those of experts, too, since a warp that sums them for its
/// greetings reads one word after the other. Called by the whole block, which then synchronizes.
TOKENYARD_DEVICE void gather_blocks(const Dispatch& dispatch) {
  const TokenColumns& columns = dispatch.params.rails.columns;
  for (uint32_t column = thread::index(); column <= columns.refusal(0);
       column += block::threads()) {
    if (column == columns.refusal(0)) {
      for (uint32_t of_block = 0; of_block < grid::blocks(); ++of_block)
        if (counted_in(dispatch.call, of_block, columns.refusal(0)) != 0) {
          dispatch.call.shared.refusing_block = of_block;
          break;
        }
      continue;
    }
    uint32_t earlier = 0, total = 0;
    for (uint32_t of_block = 0; of_block < grid::blocks(); ++of_block) {
      if (of_block == block::index()) earlier = total;
      total += counted_in(dispatch.call, of_block, column);
    }
    if (column < columns.per_token()) dispatch.tail.earlier()[column] = earlier;
    dispatch.tail.totals()[column] = total;
  }
}

/// Turns the numbers that count_warp_tokens left in the route into places. Loads those of several
/// tokens at once: they are far away. Called by each warp.
TOKENYARD_DEVICE void place_warp_tokens(const Dispatch& dispatch, TokenRange tokens) {
  const uint32_t columns = dispatch.params.rails.columns.per_token();
  const uint32_t* const of_blocks = dispatch.tail.earlier();
  const uint32_t* const of_warps = dispatch.tail.warp_counts(warp::index());
  constexpr uint32_t kAtOnce = 8;
  for (uint32_t column = warp::lane(); column < columns; column += kWarpLanes) {
    const auto before = static_cast<int32_t>(of_blocks[column] + of_warps[column]);
    for (uint32_t first = tokens.begin; first < tokens.end; first += kAtOnce) {
      int32_t numbers[kAtOnce] = {};
      TOKENYARD_UNROLL
      for (uint32_t i = 0; i < kAtOnce; ++i)
        if (first + i < tokens.end) numbers[i] = dispatch.params.route.places(first + i)[column];
      TOKENYARD_UNROLL
      for (uint32_t i = 0; i < kAtOnce; ++i)
        if (first + i < tokens.end && numbers[i] >= 0)
          dispatch.params.route.places(first + i)[column] = numbers[i] + before;
    }
  }
}

/// Counts and places the block's tokens, and knows the rank's totals. Called by the whole block.
TOKENYARD_DEVICE void count_tokens(const Dispatch& dispatch) {
  const TokenRange tokens = tokens_of_warp(dispatch.params);
  for (uint32_t i = thread::index(); i < dispatch.tail.word_count(); i += block::threads())
    dispatch.tail.words()[i] = 0;
  block::sync();
  count_warp_tokens(dispatch, tokens);
  block::sync();
  publish_block(dispatch);
  gather_blocks(dispatch);
  block::sync();
  place_warp_tokens(dispatch, tokens);
  block::sync();
  // Release: orders the places, for other blocks that claim these tokens.
  if (thread::index() == 0)
    store<Order::release, Scope::gpu>(dispatch.call.rails.tables.routed(block::index()),
                                      dispatch.call.epoch());
}

}  // namespace tokenyard::internode
