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

/// By the whole block: its share of the destinations. `ahead` is this thread's first weight.
DEVICE void send_weights(const Combine& call, float ahead) {
  const CombineParams& params = call.params;
  const CallParams& common = params.call;
  KEEP_ROLLED for (uint32_t turn = first_weights(params); turn + 1 < common.ranks;
                   turn += common.send_blocks) {
    const uint32_t destination = rank_after(common, 1 + turn);
    if (!call.call.open(destination)) continue;
    const Peer<Stamped> to = common.windows.weight(destination, call.call.parity(), common.rank, 0);
    KEEP_ROLLED for (uint32_t i = thread::index(); i < params.tokens * params.topk;
                     i += block::threads()) {
      const float weight = i == thread::index() ? ahead : load_weight(params, i);
      // Relaxed: the word says which call it belongs to and speaks of nothing else.
      store<Order::relaxed, Scope::sys>(
          to + i, Stamped{call.call.epoch(), std::bit_cast<uint32_t>(weight)});
    }
  }
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
        common.windows.weight(common.rank, call.call.parity(), of.source, of.token) +
        pick_of_lane(params);
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

/// By all lanes of a warp: its chunks of a token's row of sums.
template <class Codec, class Weigh>
DEVICE void send_sums_of(const Combine& call, OthersToken to, const WeightedRow& held,
                         uint32_t live, uint32_t first_lane, Weigh weigh) {
  const CombineParams& params = call.params;
  const CallParams& common = params.call;
  const Peer<Bytes16> row =
      common.windows.partial(to.source, call.call.parity(), common.rank, to.token);
  KEEP_ROLLED for (uint32_t chunk = warp::index(); chunk < params.chunks();
                   chunk += warp::count()) {
    const uint32_t piece = chunk * kWarpLanes + warp::lane();
    LaneSums sums;
    if (!add_rows(call, sums, held, live, first_lane, piece, weigh)) return;
    const Bytes16 staged = Codec::encode(sums);
    // Relaxed: sixteen bytes are their own flag.
    if (Codec::has_piece(params, chunk))
      store<Order::relaxed, Scope::sys>(row + (chunk * Codec::kPiecesAChunk + warp::lane()),
                                        staged);
  }
}

/// By all lanes: sums of a group's tokens. Its weights are awaited while the first rows come.
template <class Codec>
DEVICE void send_group(const Combine& call, const TokenGroup& group) {
  const CombineParams& params = call.params;
  const uint32_t picks = (1u << params.topk) - 1, lives = warp::ballot(group.slot >= 0);
  WeightedRow held{.slot = group.slot, .weight = 0};
  bool weighed = false;
  uint32_t unknown = 0;
  KEEP_ROLLED for (uint32_t i = 0; i < TokenGroup::tokens(params); ++i) {
    const uint32_t first_lane = i * params.topk, live = lives >> first_lane & picks;
    if (live == 0) continue;
    const OthersToken to{warp::shuffle(group.of.source, first_lane),
                         warp::shuffle(group.of.token, first_lane)};
    send_sums_of<Codec>(call, to, held, live, first_lane, [&] {
      if (!weighed)
        unknown = warp::ballot(group.slot >= 0 && !group.await_weight(call, held.weight));
      weighed = true;
      return (unknown >> first_lane & picks) == 0;
    });
  }
}

/// By a whole sending block. What it needs first is on its way here while it learns whether it may
/// send; of each group the rows' places are, while the one before is summed.
template <class Codec>
DEVICE void send_combine(const Combine& call) {
  const CombineParams& params = call.params;
  uint32_t base = block::index();
  TokenGroup next = TokenGroup::at(params, base);
  const float weight =
      first_weights(params) + 1 < params.call.ranks ? load_weight(params, thread::index()) : 0;
  open_call(call.call, true);
  send_weights(call, weight);
  KEEP_ROLLED while (base < OthersToken::count(params)) {
    const TokenGroup group = next;
    base += TokenGroup::tokens(params) * params.call.send_blocks;
    next = TokenGroup::at(params, base);
    send_group<Codec>(call, group);
  }
}

}  // namespace tokenyard::low_latency
