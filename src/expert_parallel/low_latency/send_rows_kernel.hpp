/// The sending blocks of a dispatch: ids to everybody, a row to each rank that wants it.
#pragma once

#include "expert_parallel/low_latency/call_kernel.hpp"
#include "expert_parallel/low_latency/cast_kernel.hpp"

namespace tokenyard::low_latency {

struct DispatchShared {
  CallShared call;
  uint32_t lacks[kRanksMax];   ///< sources some of whose ids did not come to this block
  uint32_t absent[kRanksMax];  ///< sources that take no part in this dispatch
  uint64_t waited[kRanksMax];  ///< cycles until a source's ids were in
};

struct Dispatch {
  const DispatchParams& params;
  DispatchShared& shared;
  const DispatchTail& tail;
  const Call& call;
};

DEVICE int64_t load_id(const DispatchParams& params, uint32_t token, uint32_t pick) {
  const size_t index = size_t{token} * params.topk + pick;
  if (params.idx_is_int64) return load_cached(static_cast<const int64_t*>(params.topk_idx) + index);
  return load_cached(static_cast<const int32_t*>(params.topk_idx) + index);
}

DEVICE bool is_expert(const DispatchParams& params, int64_t id) {
  return static_cast<uint64_t>(id) < params.experts;
}

/// The host learns of the first id that is no expert; such a pick counts as none.
DEVICE void complain(const Dispatch& call, uint32_t token, int64_t id) {
  Complaint& complaint = *call.params.complaint;
  // Relaxed: who wins is all that matters. `epoch` is the last word to be stored, by the winner.
  if (compare_exchange<Order::relaxed, Scope::sys>(&complaint.token, 0, token + 1) != 0) return;
  complaint.id = id;
  store<Order::release, Scope::sys>(&complaint.epoch, call.call.epoch);
}

/// By one thread: what the destination must know of one of our tokens. Tokens that there are not
/// are sent as well, since the destination's table has a fixed size.
DEVICE void send_ids(const Dispatch& call, uint32_t destination, uint32_t token) {
  const DispatchParams& params = call.params;
  const CallParams& common = params.call;
  const bool own = destination == common.rank;
  const int64_t first = int64_t{destination} * params.local_experts;
  const Peer<Bytes16> to = common.windows.ids(destination, call.call.parity(), common.rank, token);
  for (uint32_t atom = 0; atom * PackedIds::kIds < params.topk; ++atom) {
    PackedIds packed = PackedIds::of_epoch(call.call.epoch);
    for (uint32_t place = 0; place < PackedIds::kIds; ++place) {
      const uint32_t pick = atom * PackedIds::kIds + place;
      uint32_t local = PackedIds::kNone;
      if (pick < params.topk) {
        const int64_t id = token < params.tokens ? load_id(params, token, pick) : -1;
        const bool valid = is_expert(params, id);
        if (own) {
          params.out.picks[size_t{token} * params.topk + pick] =
              valid ? static_cast<int32_t>(id) : -1;
          if (!valid && id != -1) complain(call, token, id);
        }
        if (valid && id >= first && id - first < params.local_experts)
          local = static_cast<uint32_t>(id - first);
      }
      packed.set(place, local);
    }
    // Relaxed: the word says which call it belongs to and speaks of nothing else.
    store<Order::relaxed, Scope::sys>(to + atom, packed.piece);
  }
}

/// By the warps of a sending block that move no data: its share of the destinations, the next rank
/// first and this one last.
DEVICE void send_all_ids(const Dispatch& call, uint32_t first_warp) {
  const CallParams& common = call.params.call;
  const uint32_t begin = thread::index() - first_warp * kWarpLanes;
  const uint32_t threads = block::threads() - first_warp * kWarpLanes;
  for (uint32_t turn = block::index(); turn < common.ranks; turn += common.send_blocks) {
    const uint32_t destination = (common.rank + 1 + turn) % common.ranks;
    if (!call.call.open(destination)) continue;
    for (uint32_t token = begin; token < call.params.tokens_max; token += threads)
      send_ids(call, destination, token);
  }
}

/// A unit of a token, of those that a warp of a sending block moves.
struct SendPosition {
  uint32_t token, unit;

  DEVICE void advance(const DispatchParams& params, uint32_t warp, uint32_t warps) {
    unit += warps;
    if (unit < params.row.data_units()) return;
    unit = warp;
    token += params.call.send_blocks;
  }
};

/// By all lanes: the ranks that a token goes to, one lane for each.
struct Destinations {
  uint32_t rank;   ///< of this lane's pick
  uint32_t leads;  ///< lanes that stand for a rank

  DEVICE static Destinations of(const Dispatch& call, int64_t id) {
    const bool valid = is_expert(call.params, id);
    const uint32_t rank = valid ? static_cast<uint32_t>(id) / call.params.local_experts : 0;
    const bool goes = valid && call.call.open(rank);
    // Lanes that go nowhere must match with nobody.
    const uint32_t same = warp::match(goes ? rank : kRanksMax + warp::lane());
    return {rank, warp::ballot(goes && (same & lanes_below()) == 0)};
  }
};

DEVICE int64_t pick_of_lane(const DispatchParams& params, uint32_t token) {
  return warp::lane() < params.topk ? load_id(params, token, warp::lane()) : -1;
}

/// By all lanes: a unit's pieces to every destination.
DEVICE void send_unit(const Dispatch& call, SendPosition at, Destinations to,
                      const CastUnit& cast) {
  const DispatchParams& params = call.params;
  const uint32_t piece = params.row.piece(at.unit, warp::lane());
  const bool has_piece = piece < params.row.data_pieces();
  for (uint32_t left = to.leads; left != 0; left &= left - 1) {
    const uint32_t destination = warp::shuffle(to.rank, first_bit(left));
    const Peer<Bytes16> row =
        params.call.windows.row(destination, call.call.parity(), params.call.rank, at.token);
    // Relaxed: sixteen bytes are their own flag.
    if (has_piece) store<Order::relaxed, Scope::sys>(row + piece, cast.data);
    if (params.row.is_fp8() && warp::lane() == 0)
      store<Order::relaxed, Scope::sys>(row + (params.row.first_scale_piece() + at.unit),
                                        cast.scales);
  }
}

/// By the first `warps` warps of a sending block: token after token, the next one's data on its
/// way while this one's leaves.
DEVICE void send_tokens(const Dispatch& call, uint32_t warps) {
  const DispatchParams& params = call.params;
  SendPosition next{.token = block::index(), .unit = warp::index()};
  if (next.token >= params.tokens) return;
  RawUnit raw = load_unit(params, next.token, next.unit);
  int64_t id = pick_of_lane(params, next.token);
  while (next.token < params.tokens) {
    const SendPosition now = next;
    const RawUnit given = raw;
    const Destinations to = Destinations::of(call, id);
    next.advance(params, warp::index(), warps);
    if (next.token < params.tokens) {
      raw = load_unit(params, next.token, next.unit);
      id = pick_of_lane(params, next.token);
    }
    if (to.leads == 0) continue;
    send_unit(call, now, to, prepare_unit(params, now.token, now.unit, given));
  }
}

/// By a whole sending block.
DEVICE void send_dispatch(const Dispatch& call) {
  const uint32_t warps = std::min(call.params.row.data_units(), warp::count() - 1);
  if (warp::index() < warps)
    send_tokens(call, warps);
  else
    send_all_ids(call, warps);
}

}  // namespace tokenyard::low_latency
