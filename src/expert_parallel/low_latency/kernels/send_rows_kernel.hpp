/// The sending blocks of a dispatch: ids to everybody, a row to each rank that wants it.
#pragma once

#include "expert_parallel/low_latency/kernels/cast_kernel.hpp"
#include "expert_parallel/low_latency/kernels/ids_kernel.hpp"

namespace tokenyard::low_latency {

/// Eight lanes tell everybody of eight picks of a token, what one atomic word of ids holds: each
/// loads a pick, and each packs all of them for a rank of its own.
struct AskedIds {
  static constexpr uint32_t kLanes = PackedIds::kIds, kAWarp = kWarpLanes / kLanes;
  static constexpr int32_t kNothing = -1, kNoExpert = -2;
  uint32_t index;  ///< of the word, as IdsPlace has it
  LoadedId id;     ///< of this lane's pick

  DEVICE static uint32_t lane() { return warp::lane() % kLanes; }

  /// Tokens that there are not are told as well, since the destination's table has a fixed size.
  DEVICE static AskedIds load(const DispatchParams& params, uint32_t index) {
    const auto [token, first] = IdsPlace::of(index, params.topk);
    const uint32_t choice = first + lane();
    if (token >= params.tokens || choice >= params.topk) return {index, {}};
    return {index, LoadedId::load(params, token, choice)};
  }
  /// This lane's pick: an expert, kNothing or kNoExpert.
  DEVICE int32_t expert(const DispatchParams& params) const {
    const int64_t value = id.value(params);
    if (is_expert(params, value)) return static_cast<int32_t>(value);
    return value == -1 ? kNothing : kNoExpert;
  }
};

/// This lane's pick, as combine must know it, and what is wrong with it.
DEVICE void note_choice(const Dispatch& call, const AskedIds& asked, int32_t expert) {
  const DispatchParams& params = call.params;
  const auto [token, first] = IdsPlace::of(asked.index, params.topk);
  const uint32_t choice = first + AskedIds::lane();
  if (choice >= params.topk) return;
  params.out.choices[size_t{token} * params.topk + choice] = expert >= 0 ? expert : -1;
  if (expert == AskedIds::kNoExpert) [[unlikely]]
    report_error(call, token * params.topk + choice);
}

/// By one lane: what a rank must know of eight picks.
DEVICE PackedIds pack_ids(const Dispatch& call, uint32_t destination,
                          const int32_t (&experts)[PackedIds::kIds]) {
  const DispatchParams& params = call.params;
  const uint32_t first = params.by.homes.first_of(destination);
  const uint32_t count = params.by.homes.held_by(destination);
  PackedIds packed = PackedIds::of_stamp(stamp_of(call));
  UNROLL for (uint32_t place = 0; place < PackedIds::kIds; ++place) {
    // Of an expert of a rank before, it becomes more than any is here.
    const uint32_t local = static_cast<uint32_t>(experts[place]) - first;
    packed.set(place, experts[place] >= 0 && local < count ? local : PackedIds::kNone);
  }
  return packed;
}

/// A word of ids that leaves: eight lanes hold the picks, and each tells other ranks of all of
/// them. What the first rank of each lane is told is packed before it is known whether it may be.
class LeavingIds {
 public:
  DEVICE explicit LeavingIds(const Dispatch& call) : call_(call) {}
  /// By all lanes. To the next rank first and to this one last.
  DEVICE void pack(const AskedIds& asked) {
    asked_ = asked;
    expert_ = asked.expert(call_.params);
    UNROLL for (uint32_t place = 0; place < PackedIds::kIds; ++place) experts_[place] =
        warp::shuffle(expert_, warp::lane() - AskedIds::lane() + place);
    const CallParams& common = call_.params.call;
    if (AskedIds::lane() >= common.ranks) return;
    destination_ = rank_after(common, 1 + AskedIds::lane());
    packed_ = pack_ids(call_, destination_, experts_);
    to_ = settled(place_on(destination_));
  }
  /// `words`: how many there are.
  DEVICE void send(uint32_t words) const {
    const CallParams& common = call_.params.call;
    if (asked_.index >= words) return;
    if (destination_ < common.ranks) send(destination_, to_, packed_);
    KEEP_ROLLED for (uint32_t turn = AskedIds::lane() + AskedIds::kLanes; turn < common.ranks;
                     turn += AskedIds::kLanes) {
      const uint32_t destination = rank_after(common, 1 + turn);
      send(destination, place_on(destination), pack_ids(call_, destination, experts_));
    }
    if (call_.call.open(common.rank)) note_choice(call_, asked_, expert_);
    if (call_.params.weights != nullptr) publish_and_keep_weight();
  }

 private:
  /// Of this lane's pick: told to the rank that has its expert, and kept for what this rank weighs
  /// itself. Loaded here, when the ids have left, for which everybody waits.
  DEVICE void publish_and_keep_weight() const {
    const DispatchParams& params = call_.params;
    const CallParams& common = params.call;
    if (expert_ < 0) return;
    const auto [token, first] = IdsPlace::of(asked_.index, params.topk);
    const uint32_t at = token * params.topk + first + AskedIds::lane();
    const float weight = load_cached(params.weights + at);
    const uint32_t rank = params.by.homes.rank_of(static_cast<uint32_t>(expert_));
    params.out.weights[at] = weight;
    if (rank != common.rank && call_.call.open(rank))
      publish_weight(common.windows.weights(rank, params.batch, common.rank) + at,
                     call_.call.epoch(), weight);
  }
  DEVICE Peer<Bytes16> place_on(uint32_t destination) const {
    const CallParams& common = call_.params.call;
    return common.windows.ids(destination, call_.call.parity(), common.rank) + asked_.index;
  }
  DEVICE void send(uint32_t destination, Peer<Bytes16> to, const PackedIds& packed) const {
    // Relaxed: the word says which call it belongs to and speaks of nothing else.
    if (call_.call.open(destination)) store<Order::relaxed, Scope::sys>(to, packed.piece);
  }

  const Dispatch& call_;
  AskedIds asked_{};
  int32_t expert_ = AskedIds::kNothing, experts_[PackedIds::kIds] = {};
  uint32_t destination_ = kRanksMax;
  Peer<Bytes16> to_;
  PackedIds packed_{};
};

/// The words of ids that a warp tells. Blocks that move no tokens tell them, since whoever receives
/// waits for all, and a warp beside those that cast takes long for each; with few multiprocessors
/// all sending blocks share them.
struct IdsShare {
  uint32_t first, stride, count;

  /// `begin`: the block's warps that move data.
  DEVICE static IdsShare of_warp(const DispatchParams& params, uint32_t begin) {
    const uint32_t place = block::index() - params.publish_first, blocks = params.publish_blocks;
    if (place >= blocks) return {};
    const uint32_t warps = warp::count() - begin;
    const uint32_t position = (warp::index() - begin) * blocks + place;
    return {position * AskedIds::kAWarp, warps * blocks * AskedIds::kAWarp,
            params.tokens_max * packed_ids_of(params.topk)};
  }
  DEVICE bool has_words() const { return first < count; }
  DEVICE AskedIds load(const DispatchParams& params, uint32_t base) const {
    return AskedIds::load(params, base + warp::lane() / AskedIds::kLanes);
  }
};

/// A unit of a token, of those that a warp of a sending block moves.
struct SendPosition {
  uint32_t token, unit;

  DEVICE static SendPosition first(const DispatchParams& params) {
    const Divisor& team = params.by.send_team;
    const uint32_t which = team.quotient(warp::index());
    return {block::index() + which * params.data_blocks, team.remainder(warp::index(), which)};
  }
  DEVICE void advance(const DispatchParams& params) {
    const Divisor& team = params.by.send_team;
    unit += team.divisor;
    if (unit < params.row.units()) return;
    unit = team.remainder(unit, team.quotient(unit));
    token += params.send_teams * params.data_blocks;
  }
};

/// The ranks that a token goes to, masked or not: known before the block knows with whom it speaks.
/// (Lanes that find who holds the same rank take longer than the rest of a unit.)
struct Destinations {
  uint32_t rank;   ///< that holds this lane's pick, or kRanksMax
  uint32_t first;  ///< of the first 32 ranks those that hold some lane's, as bits

  /// By all lanes. `id` is this lane's pick.
  DEVICE static Destinations of(const DispatchParams& params, int64_t id) {
    Destinations made{kRanksMax, 0};
    if (is_expert(params, id)) made.rank = params.by.homes.rank_of(static_cast<uint32_t>(id));
    made.first = made.some(0);
    return made;
  }
  /// By all lanes: `send(window)` for each that the block speaks with. Windows at hand have a loop
  /// of their own: where an address may have to be loaded, nvcc waits for whatever is being loaded,
  /// the next unit's data with it.
  template <class Send>
  DEVICE void each(const Dispatch& call, Send send) const {
    const CallParams& common = call.params.call;
    constexpr uint32_t kAtHand = (1u << Peers::kAtHand) - 1;
    KEEP_ROLLED for (uint32_t left = first & kAtHand; left != 0; left &= left - 1) {
      const uint32_t destination = first_bit(left);
      if (call.call.open(destination)) send(common.windows.peers.of_at_hand(destination));
    }
    if (common.ranks <= Peers::kAtHand) return;
    KEEP_ROLLED for (uint32_t from = 0; from < common.ranks; from += 32) {
      KEEP_ROLLED for (uint32_t left = from == 0 ? first & ~kAtHand : some(from); left != 0;
                       left &= left - 1) {
        const uint32_t destination = from + first_bit(left);
        if (call.call.open(destination)) send(common.windows.peers.of(destination));
      }
    }
  }

 private:
  DEVICE uint32_t some(uint32_t from) const {
    return warp::bit_or(rank - from < 32 ? 1u << rank % 32 : 0);
  }
};

DEVICE LoadedId choice_of_lane(const DispatchParams& params, uint32_t token) {
  return warp::lane() < params.topk ? LoadedId::load(params, token, warp::lane()) : LoadedId{};
}

/// What leaves of a unit, and for whom it is.
struct ReadyUnit {
  CastUnit cast;
  Destinations to;
  Peer<Bytes16> row;       ///< where it would be staged here: at the same place as elsewhere
  uint32_t piece, scales;  ///< of the row
  bool has_piece, has_scales;

  /// By all lanes: a unit's pieces to every destination.
  DEVICE void send(const Dispatch& call) const {
    const Windows& windows = call.params.call.windows;
    to.each(call, [&](Peer<std::byte> window) {
      const Peer<Bytes16> there = windows.same_place(window, row);
      // Relaxed: sixteen bytes are their own flag.
      if (has_piece) store<Order::relaxed, Scope::sys>(there + piece, cast.data);
      if (has_scales) store<Order::relaxed, Scope::sys>(there + scales, cast.scales);
    });
  }
};

/// What a warp that moves data has in hand of a unit to come.
struct LoadedUnit {
  SendPosition at;
  RawUnit raw;
  LoadedId id;  ///< of this lane's pick

  DEVICE static LoadedUnit load(const DispatchParams& params, SendPosition at) {
    if (at.token >= params.tokens) return {at, {}, {}};
    return {at, load_unit(params, at.token, at.unit), choice_of_lane(params, at.token)};
  }
  DEVICE bool there_is(const DispatchParams& params) const { return at.token < params.tokens; }
  DEVICE LoadedUnit next(const DispatchParams& params) const {
    SendPosition then = at;
    then.advance(params);
    return load(params, then);
  }
  /// By all lanes.
  DEVICE ReadyUnit ready(const Dispatch& call) const {
    const DispatchParams& params = call.params;
    const uint32_t piece = params.row.piece(at.unit, warp::lane());
    return {.cast = prepare_unit(params, at.token, at.unit, raw),
            .to = Destinations::of(params, id.value(params)),
            .row = settled(
                params.call.windows.row_here(call.call.parity(), params.call.rank, at.token)),
            .piece = piece,
            .scales = params.row.scale_piece(at.unit),
            .has_piece = piece < params.row.data_pieces(),
            .has_scales = params.row.is_fp8() && warp::lane() == 0};
  }
};

/// By all warps of a sending block, last of all.
DEVICE void end_sending(const Dispatch& call) {
  if (block::index() == 0 && thread::index() == 0) {
    *call.params.out.epoch = call.call.epoch();
    call.params.call.workspace->first_mistake[call.call.parity() ^ 1] = 0;
  }
  advance_epoch(call.call);
  close_call(call.call);
}

/// By all lanes of a warp that moves tokens: one after the other, the next one's data on its way
/// while this one's leaves. Other warps of the block, which it meets when its first is ready, find
/// out whether it may send. But of two teams, which rows as wide as 7168 leave room for, the second
/// meets them at once and casts then: until the block has met the schedulers serve the first one's
/// token, which leaves that much sooner, and then the wire is busy while the other's is made ready.
DEVICE void send_tokens(const DispatchParams& params, DispatchShared& shared) {
  const SendPosition first = SendPosition::first(params);
  const bool yields = params.send_teams == 2 && warp::index() >= params.by.send_team.divisor;
  const Call begun = begin_call(params.call, shared.call, Kind::dispatch);
  const Dispatch call{params, shared, {}, begun};
  LoadedUnit next = LoadedUnit::load(params, first);
  if (yields) block::any(false);
  bool opened = yields, sends = next.there_is(params);
  KEEP_ROLLED do {
    ReadyUnit ready{};
    if (sends) ready = next.ready(call);
    const bool opens = !opened;
    if (opens) block::any(false);
    opened = true;
    if (!sends) break;
    // But for what leaves first: until then the wire is idle.
    if (!opens) next = next.next(params);
    ready.send(call);
    if (opens) next = next.next(params);
    sends = next.there_is(params);
  }
  while (sends)
    ;
  end_sending(call);
}

/// By all lanes of a warp that tells ids, or nothing. The block's last warps are such, so they find
/// out whether it may send. `begin`: the block's warps that move tokens.
DEVICE void publish_ids(const DispatchParams& params, DispatchShared& shared, uint32_t begin) {
  const IdsShare share = IdsShare::of_warp(params, begin);
  const Call begun = begin_call(params.call, shared.call, Kind::dispatch);
  const Dispatch call{params, shared, {}, begun};
  const Look look = Look::first(begun, true);
  LeavingIds ids(call);
  // A warp without words may be the one that looks, for which the others wait.
  if (share.has_words()) ids.pack(share.load(params, share.first));
  block::any(find_open(begun, look, true, block::threads() - begin * kWarpLanes));
  KEEP_ROLLED for (uint32_t base = share.first; base < share.count; base += share.stride) {
    if (base != share.first) ids.pack(share.load(params, base));
    ids.send(share.count);
  }
  end_sending(call);
}

/// By a whole sending block, which meets. What leaves first is made ready while the block learns
/// whether it may send. What a warp is to do the launch alone tells: it is there before the kernels
/// before have ended, since the way to code that is not near takes long.
DEVICE void send_dispatch(const DispatchParams& params, DispatchShared& shared) {
  const uint32_t warps =
      block::index() < params.data_blocks ? params.send_teams * params.by.send_team.divisor : 0;
  if (warp::index() < warps)
    send_tokens(params, shared);
  else
    publish_ids(params, shared, warps);
}

}  // namespace tokenyard::low_latency
