/// The sending blocks of a dispatch: ids to all ranks, and a row to each rank that holds an expert
/// of it. Nothing is stored to a rank before its `drained` shows that its buffer of this parity is
/// empty.
#pragma once

#include "expert_parallel/low_latency/kernels/cast_kernel.hpp"
#include "expert_parallel/low_latency/kernels/ids_kernel.hpp"

namespace tokenyard::low_latency {

/// Eight lanes publish eight choices of a token, the content of one ids word, to all ranks: each
/// lane loads one choice and packs all eight for ranks of its own.
struct AskedIds {
  static constexpr uint32_t kLanes = PackedIds::kIds, kAWarp = kWarpLanes / kLanes;
  static constexpr int32_t kNothing = -1, kNoExpert = -2;
  uint32_t index;  ///< of the word, see IdsPlace
  LoadedId id;     ///< this lane's choice

  TOKENYARD_DEVICE static uint32_t lane() { return warp::lane() % kLanes; }

  /// Tokens beyond this rank's count are published too, since the destination's table has a fixed
  /// size.
  TOKENYARD_DEVICE static AskedIds load(const DispatchParams& params, uint32_t index) {
    const auto [token, first] = IdsPlace::of(index, params.topk);
    const uint32_t choice = first + lane();
    if (token >= params.tokens || choice >= params.topk) return {index, {}};
    return {index, LoadedId::load(params, token, choice)};
  }
  /// Returns this lane's choice: an expert, kNothing or kNoExpert.
  TOKENYARD_DEVICE int32_t expert(const DispatchParams& params) const {
    const int64_t value = id.value(params);
    if (is_expert(params, value)) return static_cast<int32_t>(value);
    return value == -1 ? kNothing : kNoExpert;
  }
};

/// Notes this lane's choice for combine, and reports an invalid one.
TOKENYARD_DEVICE void note_choice(const Dispatch& call, const AskedIds& asked, int32_t expert) {
  const DispatchParams& params = call.params;
  const auto [token, first] = IdsPlace::of(asked.index, params.topk);
  const uint32_t choice = first + AskedIds::lane();
  if (choice >= params.topk) return;
  params.out.choices[size_t{token} * params.topk + choice] = expert >= 0 ? expert : -1;
  if (expert == AskedIds::kNoExpert) [[unlikely]]
    report_error(call, token * params.topk + choice);
}

/// Returns the ids word of eight choices for one rank. Called by one lane.
TOKENYARD_DEVICE PackedIds pack_ids(const Dispatch& call, uint32_t destination,
                                    const int32_t (&experts)[PackedIds::kIds]) {
  const DispatchParams& params = call.params;
  const uint32_t first = params.by.homes.first_of(destination);
  const uint32_t count = params.by.homes.held_by(destination);
  PackedIds packed = PackedIds::of_stamp(stamp_of(call));
  TOKENYARD_UNROLL for (uint32_t place = 0; place < PackedIds::kIds; ++place) {
    // For an expert of an earlier rank this wraps around to more than any local index.
    const uint32_t local = static_cast<uint32_t>(experts[place]) - first;
    packed.set(place, experts[place] >= 0 && local < count ? local : PackedIds::kNone);
  }
  return packed;
}

/// An outgoing ids word: eight lanes hold its choices, and each sends all of them to some ranks.
/// The word for each lane's first rank is packed before it is known whether that rank is open.
class LeavingIds {
 public:
  TOKENYARD_DEVICE explicit LeavingIds(const Dispatch& call) : call_(call) {}
  /// Called by all lanes. Begins with the next rank and ends with this one.
  TOKENYARD_DEVICE void pack(const AskedIds& asked) {
    asked_ = asked;
    expert_ = asked.expert(call_.params);
    TOKENYARD_UNROLL for (uint32_t place = 0; place < PackedIds::kIds; ++place) experts_[place] =
        warp::shuffle(expert_, warp::lane() - AskedIds::lane() + place);
    const CallParams& common = call_.params.call;
    if (AskedIds::lane() >= common.ranks) return;
    destination_ = rank_after(common, 1 + AskedIds::lane());
    packed_ = pack_ids(call_, destination_, experts_);
    to_ = settled(place_on(destination_));
  }
  /// `words`: total number of ids words.
  TOKENYARD_DEVICE void send(uint32_t words) const {
    const CallParams& common = call_.params.call;
    if (asked_.index >= words) return;
    if (destination_ < common.ranks) send(destination_, to_, packed_);
    TOKENYARD_KEEP_ROLLED for (uint32_t turn = AskedIds::lane() + AskedIds::kLanes;
                               turn < common.ranks; turn += AskedIds::kLanes) {
      const uint32_t destination = rank_after(common, 1 + turn);
      send(destination, place_on(destination), pack_ids(call_, destination, experts_));
    }
    if (call_.call.open(common.rank)) note_choice(call_, asked_, expert_);
    if (call_.params.weights != nullptr) publish_and_keep_weight();
  }

 private:
  /// Publishes this lane's weight to the rank of its expert, and keeps it for the rows that this
  /// rank weights itself. Loaded only now, after the ids, which every rank waits for.
  TOKENYARD_DEVICE void publish_and_keep_weight() const {
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
                     weights_stamp(call_.call.epoch()), weight);
  }
  TOKENYARD_DEVICE Peer<Bytes16> place_on(uint32_t destination) const {
    const CallParams& common = call_.params.call;
    return common.windows.ids(destination, call_.call.parity(), common.rank) + asked_.index;
  }
  TOKENYARD_DEVICE void send(uint32_t destination, Peer<Bytes16> to,
                             const PackedIds& packed) const {
    // Relaxed: the word carries its stamp and releases no other data.
    if (call_.call.open(destination)) store<Order::relaxed, Scope::sys>(to, packed.piece);
  }

  const Dispatch& call_;
  AskedIds asked_{};
  int32_t expert_ = AskedIds::kNothing, experts_[PackedIds::kIds] = {};
  uint32_t destination_ = kNobody;
  Peer<Bytes16> to_;
  PackedIds packed_{};
};

/// The ids words that a warp publishes. Blocks that move no tokens publish them, since every
/// receiver waits for all of them and a warp next to casting warps takes long; with few
/// multiprocessors all sending blocks share them.
struct IdsShare {
  uint32_t first, stride, count;

  /// `begin`: warps of the block that move data.
  TOKENYARD_DEVICE static IdsShare of_warp(const DispatchParams& params, uint32_t begin) {
    const uint32_t place = block::index() - params.publish_first, blocks = params.publish_blocks;
    if (place >= blocks) return {};
    const uint32_t warps = warp::count() - begin;
    const uint32_t position = (warp::index() - begin) * blocks + place;
    return {position * AskedIds::kAWarp, warps * blocks * AskedIds::kAWarp,
            params.tokens_max * packed_ids_of(params.topk)};
  }
  TOKENYARD_DEVICE bool has_words() const { return first < count; }
  TOKENYARD_DEVICE AskedIds load(const DispatchParams& params, uint32_t base) const {
    return AskedIds::load(params, base + warp::lane() / AskedIds::kLanes);
  }
};

/// A unit of a token, among those that a warp of a sending block moves.
struct SendPosition {
  uint32_t token, unit;

  TOKENYARD_DEVICE static SendPosition first(const DispatchParams& params) {
    const Divisor& team = params.by.send_team;
    const uint32_t which = team.quotient(warp::index());
    return {block::index() + which * params.data_blocks, team.remainder(warp::index(), which)};
  }
  TOKENYARD_DEVICE void advance(const DispatchParams& params) {
    const Divisor& team = params.by.send_team;
    unit += team.divisor;
    if (unit < params.row.units()) return;
    unit = team.remainder(unit, team.quotient(unit));
    token += params.send_teams * params.data_blocks;
  }
};

/// Ranks that one word of a set holds: few in the simulator, so that small worlds have several
/// words.
#if defined(__SANITIZE_THREAD__)
inline constexpr uint32_t kRanksAWord = 4;
#else
inline constexpr uint32_t kRanksAWord = 32;
#endif

/// The ranks that a token goes to, masked or not: known before the open ranks are. (Grouping lanes
/// by rank would take longer than the rest of a unit.)
struct Destinations {
  uint32_t rank;   ///< rank that holds this lane's choice, or kNobody
  uint32_t first;  ///< of the first kRanksAWord ranks, those that hold some lane's choice, as bits

  /// Called by all lanes. `id` is this lane's choice.
  TOKENYARD_DEVICE static Destinations of(const DispatchParams& params, int64_t id) {
    Destinations made{kNobody, 0};
    if (is_expert(params, id)) made.rank = params.by.homes.rank_of(static_cast<uint32_t>(id));
    made.first = made.some(0);
    return made;
  }
  /// Calls `send(window)` for each open destination. Called by all lanes. Windows at hand have a
  /// loop of their own: where an address may have to be loaded, nvcc waits for all loads in flight,
  /// the next unit's data included.
  template <class Send>
  TOKENYARD_DEVICE void each(const Dispatch& call, Send send) const {
    const CallParams& common = call.params.call;
    constexpr uint32_t kRanks = std::min(Peers::kAtHand, kRanksAWord), kAtHand = (1u << kRanks) - 1;
    TOKENYARD_KEEP_ROLLED for (uint32_t left = first & kAtHand; left != 0; left &= left - 1) {
      const uint32_t destination = first_bit(left);
      if (call.call.open(destination)) send(common.windows.peers.of_at_hand(destination));
    }
    if (common.ranks <= kRanks) return;
    TOKENYARD_KEEP_ROLLED for (uint32_t from = 0; from < common.ranks; from += kRanksAWord) {
      TOKENYARD_KEEP_ROLLED for (uint32_t left = from == 0 ? first & ~kAtHand : some(from);
                                 left != 0; left &= left - 1) {
        const uint32_t destination = from + first_bit(left);
        if (call.call.open(destination)) send(common.windows.peers.of(destination));
      }
    }
  }

 private:
  TOKENYARD_DEVICE uint32_t some(uint32_t from) const {
    return warp::bit_or(rank - from < kRanksAWord ? 1u << rank % kRanksAWord : 0);
  }
};

TOKENYARD_DEVICE LoadedId choice_of_lane(const DispatchParams& params, uint32_t token) {
  return warp::lane() < params.topk ? LoadedId::load(params, token, warp::lane()) : LoadedId{};
}

/// A unit ready to send, and its destinations.
struct ReadyUnit {
  CastUnit cast;
  Destinations to;
  Peer<Bytes16> row;       ///< staged row as if on this rank: the same offset in every window
  uint32_t piece, scales;  ///< indices in the row
  bool has_piece, has_scales;

  /// Sends a unit's pieces to every destination. Called by all lanes.
  TOKENYARD_DEVICE void send(const Dispatch& call) const {
    const Windows& windows = call.params.call.windows;
    to.each(call, [&](Peer<std::byte> window) {
      const Peer<Bytes16> there = windows.same_place(window, row);
      // Relaxed: sixteen bytes are their own flag.
      if (has_piece) store<Order::relaxed, Scope::sys>(there + piece, cast.data);
      if (has_scales) store<Order::relaxed, Scope::sys>(there + scales, cast.scales);
    });
  }
};

/// A unit whose loads a data warp has issued.
struct LoadedUnit {
  SendPosition at;
  RawUnit raw;
  LoadedId id;  ///< this lane's choice

  TOKENYARD_DEVICE static LoadedUnit load(const DispatchParams& params, SendPosition at) {
    if (at.token >= params.tokens) return {at, {}, {}};
    return {at, load_unit(params, at.token, at.unit), choice_of_lane(params, at.token)};
  }
  TOKENYARD_DEVICE bool there_is(const DispatchParams& params) const {
    return at.token < params.tokens;
  }
  TOKENYARD_DEVICE LoadedUnit next(const DispatchParams& params) const {
    SendPosition then = at;
    then.advance(params);
    return load(params, then);
  }
  /// Casts the unit and finds its destinations. Called by all lanes.
  TOKENYARD_DEVICE ReadyUnit ready(const Dispatch& call) const {
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

/// Ends the sending part. Called by all warps of a sending block.
TOKENYARD_DEVICE void end_sending(const Dispatch& call) {
  if (block::index() == 0 && thread::index() == 0) {
    *call.params.out.weights_stamp = weights_stamp(call.call.epoch());
    call.params.call.workspace->first_mistake[call.call.parity() ^ 1] = 0;
  }
  advance_epoch(call.call);
  close_call(call.call);
}

/// Sends tokens, loading the next token's data while the current one is sent. Called by all lanes
/// of a data warp. Other warps of the block find out whether it may send; the block synchronizes
/// when its first unit is ready. If there are two teams (rows as wide as 7168 leave room for them),
/// the second joins that barrier at once and casts afterwards: until the barrier the schedulers
/// serve only the first team's token, which leaves that much sooner, and its transfer then overlaps
/// the second team's preparation.
TOKENYARD_DEVICE void send_tokens(const DispatchParams& params) {
  const SendPosition first = SendPosition::first(params);
  const bool yields = params.send_teams == 2 && warp::index() >= params.by.send_team.divisor;
  const DispatchTail tail = tail_of(params);
  const Call begun = begin_call(params.call, tail.open(), Kind::dispatch);
  const Dispatch call{params, tail, begun};
  LoadedUnit next = LoadedUnit::load(params, first);
  if (yields) block::any(false);
  bool opened = yields, sends = next.there_is(params);
  TOKENYARD_KEEP_ROLLED do {
    ReadyUnit ready{};
    if (sends) ready = next.ready(call);
    const bool opens = !opened;
    if (opens) block::any(false);
    opened = true;
    if (!sends) break;
    // Not before the first unit has been sent: until then the link is idle.
    if (!opens) next = next.next(params);
    ready.send(call);
    if (opens) next = next.next(params);
    sends = next.there_is(params);
  }
  while (sends)
    ;
  end_sending(call);
}

/// Publishes ids, or nothing. Called by all lanes of the block's last warps, which therefore also
/// find out whether the block may send. `begin`: warps of the block that move tokens.
TOKENYARD_DEVICE void publish_ids(const DispatchParams& params, uint32_t begin) {
  const IdsShare share = IdsShare::of_warp(params, begin);
  const DispatchTail tail = tail_of(params);
  const Call begun = begin_call(params.call, tail.open(), Kind::dispatch);
  const Dispatch call{params, tail, begun};
  const Look look = Look::first(begun, true);
  LeavingIds ids(call);
  // A warp without words may still be the one that looks for the block.
  if (share.has_words()) ids.pack(share.load(params, share.first));
  block::any(find_open(begun, look, true, block::threads() - begin * kWarpLanes));
  TOKENYARD_KEEP_ROLLED for (uint32_t base = share.first; base < share.count;
                             base += share.stride) {
    if (base != share.first) ids.pack(share.load(params, base));
    ids.send(share.count);
  }
  end_sending(call);
}

/// Called by a whole sending block, which synchronizes. Its first units are prepared while it finds
/// out whether it may send. Roles follow from the launch parameters alone, so a warp reaches its
/// code before earlier kernels have ended: fetching distant code takes long.
TOKENYARD_DEVICE void send_dispatch(const DispatchParams& params) {
  const uint32_t warps =
      block::index() < params.data_blocks ? params.send_teams * params.by.send_team.divisor : 0;
  if (warp::index() < warps)
    send_tokens(params);
  else
    publish_ids(params, warps);
}

}  // namespace tokenyard::low_latency
