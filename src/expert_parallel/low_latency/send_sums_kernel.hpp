/// The sending blocks of a combine: weights to everybody, then sums of this rank's experts' rows to
/// the owners of the tokens.
#pragma once

#include <bit>

#include "expert_parallel/low_latency/call_kernel.hpp"
#include "expert_parallel/low_latency/sums_codecs_kernel.hpp"

namespace tokenyard::low_latency {

/// By the whole block: its share of the destinations.
DEVICE void send_weights(const Combine& call) {
  const CombineParams& params = call.params;
  const CallParams& common = params.call;
  for (uint32_t turn = block::index(); turn + 1 < common.ranks; turn += common.send_blocks) {
    const uint32_t destination = (common.rank + 1 + turn) % common.ranks;
    if (!call.call.open(destination)) continue;
    const Peer<Stamped> to = common.windows.weight(destination, call.call.parity(), common.rank, 0);
    for (uint32_t i = thread::index(); i < params.tokens * params.topk; i += block::threads())
      // Relaxed: the word says which call it belongs to and speaks of nothing else.
      store<Order::relaxed, Scope::sys>(
          to + i, Stamped{call.call.epoch, std::bit_cast<uint32_t>(params.weights[i])});
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
    const uint32_t others = params.call.ranks - 1;
    const uint32_t token = position / others;
    const uint32_t source = (params.call.rank + 1 + (position + token) % others);
    return {source % params.call.ranks, token};
  }
};

/// By one lane: its pick of a token of another rank, once the owner has told its weight. False if
/// the owner is masked.
DEVICE bool load_pick(const Combine& call, OthersToken of, uint32_t pick, WeightedRow& row) {
  const CombineParams& params = call.params;
  const CallParams& common = params.call;
  if (!call.call.open(of.source)) return false;
  const size_t token = size_t{of.source} * params.tokens_max + of.token;
  row.slot = params.row_slot[token * params.topk + pick];
  if (row.slot < 0) return true;
  const Peer<Stamped> from =
      common.windows.weight(common.rank, call.call.parity(), of.source, of.token) + pick;
  return call.call.await(Phase::combine_weights, of.source, call.call.epoch, [&](uint64_t& seen) {
    // Relaxed: the word is all there is to see.
    const Stamped weight = load<Order::relaxed, Scope::sys>(from);
    row.weight = std::bit_cast<float>(weight.value);
    seen = weight.epoch;
    return weight.epoch == call.call.epoch;
  });
}

/// By all lanes of a warp: its chunks of a token's row of sums.
template <class Codec>
DEVICE void send_sums_of(const Combine& call, OthersToken to, WeightedRow held, uint32_t live,
                         uint32_t first_lane) {
  const CombineParams& params = call.params;
  const CallParams& common = params.call;
  const Peer<Bytes16> row =
      common.windows.partial(to.source, call.call.parity(), common.rank, to.token);
  for (uint32_t chunk = warp::index(); chunk < params.chunks(); chunk += warp::count()) {
    const uint32_t piece = chunk * kWarpLanes + warp::lane();
    LaneSums sums;
    add_rows(call, sums, held, live, first_lane, piece);
    const Bytes16 staged = Codec::encode(sums);
    // Relaxed: sixteen bytes are their own flag.
    if (Codec::has_piece(params, chunk))
      store<Order::relaxed, Scope::sys>(row + (chunk * Codec::kPiecesAChunk + warp::lane()),
                                        staged);
  }
}

/// By a whole sending block. Lanes hold the picks of several tokens at once, as many as fit.
template <class Codec>
DEVICE void send_combine(const Combine& call) {
  send_weights(call);
  const CombineParams& params = call.params;
  const uint32_t at_once = kWarpLanes / params.topk, stride = params.call.send_blocks;
  const uint32_t tokens = OthersToken::count(params);
  const uint32_t mine = warp::lane() / params.topk, pick = warp::lane() % params.topk;
  const uint32_t picks = (1u << params.topk) - 1;
  for (uint32_t base = block::index(); base < tokens; base += at_once * stride) {
    WeightedRow held{.slot = -1, .weight = 0};
    bool known = true;
    if (mine < at_once && base + mine * stride < tokens)
      known = load_pick(call, OthersToken::at(params, base + mine * stride), pick, held);
    const uint32_t lives = warp::ballot(held.slot >= 0), unknown = warp::ballot(!known);
    for (uint32_t i = 0; i < at_once; ++i) {
      const uint32_t first_lane = i * params.topk;
      const uint32_t live = lives >> first_lane & picks;
      if (live == 0 || (unknown >> first_lane & picks) != 0) continue;
      send_sums_of<Codec>(call, OthersToken::at(params, base + i * stride), held, live, first_lane);
    }
  }
}

}  // namespace tokenyard::low_latency
