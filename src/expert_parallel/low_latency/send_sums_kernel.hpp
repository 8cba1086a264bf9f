/// The sending blocks of a combine: weights to everybody, then sums of this rank's experts' rows to
/// the owners of the tokens.
#pragma once

#include <bit>

#include "expert_parallel/low_latency/call_kernel.hpp"
#include "expert_parallel/low_latency/sums_codecs_kernel.hpp"

namespace tokenyard::low_latency {

DEVICE float load_weight(const CombineParams& params, uint32_t index) {
  return index < params.tokens * params.topk ? load_cached(params.weights + index) : 0;
}

/// The first of a sending block's destinations, counted from the next rank. The last blocks begin:
/// of few tokens they have none to sum. But the very last may have to speak for the rank before.
DEVICE uint32_t first_weights(const CombineParams& params) {
  const uint32_t last = params.call.send_blocks - 1;
  return block::index() == last ? last : last - 1 - block::index();
}

/// By one thread.
DEVICE void send_weight(const Combine& call, uint32_t destination, uint32_t index, float weight) {
  const CallParams& common = call.params.call;
  // Relaxed: the word says which call it belongs to and speaks of nothing else.
  store<Order::relaxed, Scope::sys>(
      common.windows.weights(destination, call.call.parity(), common.rank) + index,
      Stamped{call.call.epoch(), std::bit_cast<uint32_t>(weight)});
}

/// The block's share of the destinations: `send(destination)` for each.
template <class Send>
DEVICE void each_weighed(const Combine& call, Send send) {
  const CallParams& common = call.params.call;
  KEEP_ROLLED for (uint32_t turn = first_weights(call.params); turn + 1 < common.ranks;
                   turn += common.send_blocks) send(rank_after(common, 1 + turn));
}

/// What a thread has loaded of the weights before the block may send. A warp that looks at ranks
/// tells the first of them itself, before the block meets, since others wait for them; the block
/// tells the rest.
struct WeightsAhead {
  float first, rest;

  DEVICE static WeightsAhead load(const CombineParams& params) {
    if (first_weights(params) + 1 >= params.call.ranks) return {};
    return {warp_looks(params.call) ? load_weight(params, warp::lane()) : 0,
            load_weight(params, kWarpLanes + thread::index())};
  }
};

/// By all lanes of a warp that looks.
DEVICE void send_first_weights(const Combine& call, float ahead) {
  each_weighed(call, [&](uint32_t destination) {
    if (warp_looks_at(destination) && call.call.open(destination) &&
        warp::lane() < call.params.tokens * call.params.topk)
      send_weight(call, destination, warp::lane(), ahead);
  });
}

/// By the whole block.
DEVICE void send_other_weights(const Combine& call, float ahead) {
  const uint32_t weights = call.params.tokens * call.params.topk;
  const uint32_t first = kWarpLanes + thread::index();
  if (kWarpLanes >= weights) return;
  each_weighed(call, [&](uint32_t destination) {
    if (!call.call.open(destination)) return;
    KEEP_ROLLED for (uint32_t i = first; i < weights; i += block::threads())
        send_weight(call, destination, i, i == first ? ahead : load_weight(call.params, i));
  });
}

/// A token of another rank: all tokens 0 first, then all tokens 1, beginning with another rank each
/// time, so that no destination is everybody's first.
struct OthersToken {
  uint32_t source, token;

  DEVICE static uint32_t count(const CombineParams& params) {
    return (params.call.ranks - 1) * params.tokens_max;
  }
  DEVICE static OthersToken at(const CombineParams& params, uint32_t position) {
    const Divisor& others = params.by.others;
    const uint32_t token = others.quotient(position), turn = position + token;
    return {rank_after(params.call, 1 + others.remainder(turn, others.quotient(turn))), token};
  }
};

/// Tokens of other ranks that a warp sums one after the other, a lane a pick: as many as fit. They
/// follow a grid's stride apart.
struct TokenGroup {
  OthersToken of;  ///< of this lane's pick
  int32_t slot;    ///< of its row, or -1

  DEVICE static uint32_t tokens(const CombineParams& params) {
    return params.by.topk.quotient(kWarpLanes);
  }

  DEVICE static uint32_t pick_of_lane(const CombineParams& params) {
    return params.by.topk.remainder(warp::lane(), params.by.topk.quotient(warp::lane()));
  }

  /// By all lanes. `base`: position of the first token.
  DEVICE static TokenGroup at(const CombineParams& params, uint32_t base) {
    const uint32_t which = params.by.topk.quotient(warp::lane());
    const uint32_t position = base + which * params.call.send_blocks;
    if (which >= tokens(params) || position >= OthersToken::count(params)) return {{0, 0}, -1};
    const OthersToken of = OthersToken::at(params, position);
    const size_t at = size_t{of.source} * params.tokens_max + of.token;
    return {of, load_cached(params.row_slot + at * params.topk + pick_of_lane(params))};
  }

  /// By one lane with a row: its weight, once the owner has told it. False if the owner is masked.
  DEVICE bool await_weight(const Combine& call, float& weight) const {
    const CombineParams& params = call.params;
    const CallParams& common = params.call;
    if (!call.call.open(of.source)) return false;
    const Peer<Stamped> from =
        common.windows.weights_here(call.call.parity(), of.source, of.token) + pick_of_lane(params);
    return call.call.await(Phase::combine_weights, of.source, call.call.epoch(),
                           [&](uint64_t& seen) {
                             // Relaxed: the word is all there is to see.
                             const Stamped told = load<Order::relaxed, Scope::sys>(from);
                             weight = std::bit_cast<float>(told.value);
                             seen = told.epoch;
                             return told.epoch == call.call.epoch();
                           });
  }
};

/// A chunk of the row of sums of one of a group's tokens, as a warp makes them one after the other.
struct SumsJob {
  uint32_t tokens;  ///< of the group that have rows, from the one at hand on, as bits
  uint32_t chunk;

  DEVICE static SumsJob first(const CombineParams& params, uint32_t lives) {
    uint32_t tokens = 0;
    KEEP_ROLLED for (uint32_t i = 0; i < TokenGroup::tokens(params); ++i) {
      if ((lives >> i * params.topk & picks(params)) != 0) tokens |= 1u << i;
    }
    return {warp::index() < params.chunks() ? tokens : 0, warp::index()};
  }
  DEVICE bool there_is() const { return tokens != 0; }
  DEVICE void advance(const CombineParams& params) {
    chunk += warp::count();
    if (chunk < params.chunks()) return;
    chunk = warp::index();
    tokens &= tokens - 1;
  }

  DEVICE static uint32_t picks(const CombineParams& params) { return (1u << params.topk) - 1; }
  /// Of the token at hand: the lane of its first pick, and which of its picks have a row.
  DEVICE uint32_t first_lane(const CombineParams& params) const {
    return first_bit(tokens) * params.topk;
  }
  DEVICE uint32_t live(const CombineParams& params, uint32_t lives) const {
    return lives >> first_lane(params) & picks(params);
  }
  DEVICE uint32_t piece() const { return chunk * kWarpLanes + warp::lane(); }
};

/// By all lanes: to the token's owner.
template <class Codec>
DEVICE void send_sums(const Combine& call, OthersToken to, uint32_t chunk, const LaneSums& sums) {
  const CallParams& common = call.params.call;
  const Peer<Bytes16> row =
      common.windows.partial(to.source, call.call.parity(), common.rank, to.token);
  const Bytes16 staged = Codec::encode(sums);
  // Relaxed: sixteen bytes are their own flag.
  if (Codec::has_piece(call.params, chunk))
    store<Order::relaxed, Scope::sys>(row + (chunk * Codec::kPiecesAChunk + warp::lane()), staged);
}

/// By all lanes: sums of a group's tokens. Of each job the first rows come while the one before is
/// added up, and those of the first while the weights are awaited.
template <class Codec>
DEVICE void send_group(const Combine& call, const TokenGroup& group) {
  const CombineParams& params = call.params;
  const uint32_t lives = warp::ballot(group.slot >= 0);
  WeightedRow held{.slot = group.slot, .weight = 0};
  SumsJob next = SumsJob::first(params, lives);
  if (!next.there_is()) return;
  PickedRows ahead;
  const auto load_ahead = [&] {
    return ahead.load(params, held, next.live(params, lives), next.first_lane(params),
                      next.piece());
  };
  uint32_t left_ahead = load_ahead();
  const uint32_t unknown = warp::ballot(group.slot >= 0 && !group.await_weight(call, held.weight));
  KEEP_ROLLED while (next.there_is()) {
    const SumsJob job = next;
    PickedRows rows = ahead;
    uint32_t left = left_ahead, live = job.live(params, lives);
    const uint32_t first_lane = job.first_lane(params);
    next.advance(params);
    if (next.there_is()) left_ahead = load_ahead();
    if ((unknown >> first_lane & SumsJob::picks(params)) != 0) continue;  // Its owner is masked.
    LaneSums sums;
    rows.add_to(sums, held, live, first_lane);
    KEEP_ROLLED while (left != 0) {
      live = left;
      left = rows.load(params, held, live, first_lane, job.piece());
      rows.add_to(sums, held, live, first_lane);
    }
    const OthersToken to{warp::shuffle(group.of.source, first_lane),
                         warp::shuffle(group.of.token, first_lane)};
    send_sums<Codec>(call, to, job.chunk, sums);
  }
}

/// By a whole sending block. What it needs first is on its way here while it learns whether it may
/// send; of each group the rows' places are, while the one before is summed.
template <class Codec>
DEVICE void send_combine(const Combine& call) {
  const CombineParams& params = call.params;
  const bool looks = warp_looks(params.call);
  const WeightsAhead weights = WeightsAhead::load(params);
  uint32_t base = block::index();
  TokenGroup next{{0, 0}, -1};
  if (!looks) next = TokenGroup::at(params, base);
  open_call(call.call, true, [&] { send_first_weights(call, weights.first); });
  if (looks) next = TokenGroup::at(params, base);
  send_other_weights(call, weights.rest);
  KEEP_ROLLED while (base < OthersToken::count(params)) {
    const TokenGroup group = next;
    base += TokenGroup::tokens(params) * params.call.send_blocks;
    next = TokenGroup::at(params, base);
    send_group<Codec>(call, group);
  }
}

}  // namespace tokenyard::low_latency
