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
  store<Order::release, Scope::sys>(&complaint.epoch, call.call.epoch());
}

DEVICE void complain_of(const Dispatch& call, uint32_t token) {
  KEEP_ROLLED for (uint32_t pick = 0; pick < call.params.topk; ++pick) {
    const int64_t id = load_id(call.params, token, pick);
    if (!is_expert(call.params, id) && id != -1) complain(call, token, id);
  }
}

/// Eight picks of a token of ours, as one thread tells them: what one atomic word of ids holds.
struct AskedIds {
  static constexpr int32_t kNothing = -1, kNoExpert = -2;
  int32_t expert[PackedIds::kIds];

  /// `index` of a word, as IdsPlace has it. Tokens that there are not are told as well, since the
  /// destination's table has a fixed size.
  DEVICE static AskedIds load(const DispatchParams& params, uint32_t index) {
    const auto [token, first] = IdsPlace::of(index, params.topk);
    AskedIds asked;
    UNROLL for (uint32_t place = 0; place < PackedIds::kIds; ++place) {
      asked.expert[place] = kNothing;
      if (token >= params.tokens || first + place >= params.topk) continue;
      const int64_t id = load_id(params, token, first + place);
      asked.expert[place] = is_expert(params, id) ? static_cast<int32_t>(id)
                            : id == -1            ? kNothing
                                                  : kNoExpert;
    }
    return asked;
  }
};

/// By the thread that tells this rank itself of a token: the token's picks, as combine must know
/// them, and what is wrong with them.
DEVICE void note_picks(const Dispatch& call, uint32_t index, const AskedIds& asked) {
  const DispatchParams& params = call.params;
  const auto [token, first] = IdsPlace::of(index, params.topk);
  int32_t* const picks = params.out.picks + size_t{token} * params.topk;
  bool wrong = false;
  UNROLL for (uint32_t place = 0; place < PackedIds::kIds; ++place) {
    const int32_t expert = asked.expert[place];
    if (first + place < params.topk) picks[first + place] = expert >= 0 ? expert : -1;
    wrong |= expert == AskedIds::kNoExpert;
  }
  if (wrong) [[unlikely]]
    complain_of(call, token);
}

/// By one thread: what the destination must know of eight picks.
DEVICE void send_ids(const Dispatch& call, uint32_t destination, uint32_t index,
                     const AskedIds& asked) {
  const DispatchParams& params = call.params;
  const CallParams& common = params.call;
  const uint32_t first = destination * params.local_experts;
  PackedIds packed = PackedIds::of_epoch(call.call.epoch());
  UNROLL for (uint32_t place = 0; place < PackedIds::kIds; ++place) {
    // What is no expert becomes more than any.
    const uint32_t local = static_cast<uint32_t>(asked.expert[place]) - first;
    packed.set(place,
               asked.expert[place] >= 0 && local < params.local_experts ? local : PackedIds::kNone);
  }
  // Relaxed: the word says which call it belongs to and speaks of nothing else.
  store<Order::relaxed, Scope::sys>(
      common.windows.ids(destination, call.call.parity(), common.rank) + index, packed.piece);
  if (destination == common.rank) note_picks(call, index, asked);
}

/// By the threads of a sending block that move no data, `begin` of them before: its share of the
/// destinations, the next rank first and this one last. `ahead` is what was loaded of the first,
/// but for the warps that have looked at ranks meanwhile.
DEVICE void send_all_ids(const Dispatch& call, uint32_t begin, AskedIds ahead) {
  const CallParams& common = call.params.call;
  const uint32_t threads = block::threads() - begin, first = thread::index() - begin;
  const uint32_t ids = call.params.tokens_max * packed_ids_of(call.params.topk);
  KEEP_ROLLED for (uint32_t turn = block::index(); turn < common.ranks;
                   turn += common.send_blocks) {
    const uint32_t destination = rank_after(common, 1 + turn);
    if (!call.call.open(destination)) continue;
    KEEP_ROLLED for (uint32_t index = first; index < ids; index += threads) send_ids(
        call, destination, index,
        index == first && !warp_looks(common) ? ahead : AskedIds::load(call.params, index));
  }
}

/// A unit of a token, of those that a warp of a sending block moves.
struct SendPosition {
  uint32_t token, unit;

  DEVICE static SendPosition first(const DispatchParams& params) {
    const Divisor& team = params.by.send_team;
    const uint32_t which = team.quotient(warp::index());
    return {block::index() + which * params.call.send_blocks, team.remainder(warp::index(), which)};
  }
  DEVICE void advance(const DispatchParams& params) {
    const Divisor& team = params.by.send_team;
    unit += team.divisor;
    if (unit < params.row.data_units()) return;
    unit = team.remainder(unit, team.quotient(unit));
    token += params.send_teams * params.call.send_blocks;
  }
};

/// By all lanes: the ranks that a token goes to, one lane for each.
struct Destinations {
  uint32_t rank;   ///< of this lane's pick
  uint32_t leads;  ///< lanes that stand for a rank

  DEVICE static Destinations of(const Dispatch& call, int64_t id) {
    const bool valid = is_expert(call.params, id);
    const uint32_t rank =
        valid ? call.params.by.local_experts.quotient(static_cast<uint32_t>(id)) : 0;
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

/// What a warp that moves data has in hand of a unit to come.
struct LoadedUnit {
  SendPosition at;
  RawUnit raw;
  int64_t id;  ///< this lane's pick

  DEVICE static LoadedUnit load(const DispatchParams& params, SendPosition at) {
    if (at.token >= params.tokens) return {at, {}, -1};
    return {at, load_unit(params, at.token, at.unit), pick_of_lane(params, at.token)};
  }
};

/// By a whole sending block: token after token, the next one's data on its way while this one's
/// leaves. What is sent first is on its way here while the block learns whether it may send, but it
/// is cast after that: ids must not wait for it, with which a receiver has more to do than with
/// rows.
DEVICE void send_dispatch(const Dispatch& call) {
  const DispatchParams& params = call.params;
  const uint32_t warps = params.send_teams * params.by.send_team.divisor;
  const bool moves_data = warp::index() < warps;
  LoadedUnit next{};
  AskedIds ids{};
  if (moves_data)
    next = LoadedUnit::load(params, SendPosition::first(params));
  else if (block::index() < params.call.ranks && !warp_looks(params.call))
    ids = AskedIds::load(params, thread::index() - warps * kWarpLanes);
  open_call(call.call, true, [] {});
  if (!moves_data) {
    send_all_ids(call, warps * kWarpLanes, ids);
    return;
  }
  KEEP_ROLLED while (next.at.token < params.tokens) {
    const LoadedUnit now = next;
    next.at.advance(params);
    next = LoadedUnit::load(params, next.at);
    const CastUnit cast = prepare_unit(params, now.at.token, now.at.unit, now.raw);
    send_unit(call, now.at, Destinations::of(call, now.id), cast);
  }
}

}  // namespace tokenyard::low_latency
