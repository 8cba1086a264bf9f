/// The dispatch kernel between hosts. See across_hosts.hpp and dispatch.hpp for the protocol.
#pragma once

#include "expert_parallel/internode/kernels/receive_kernel.hpp"

namespace tokenyard::internode {

/// Whether a call moves rows, once this rank knows all counts; or nothing, if it has failed.
enum class Outcome : uint32_t { moves, refused, failed };

TOKENYARD_DEVICE Outcome await_known(const RailCall& call) {
  Stamped known{};
  const bool come = call.await_own(Phase::known, [&] {
    // Acquires the route, and the words of all sources.
    known = load<Order::acquire, Scope::gpu>(&call.workspace().known);
    return known.epoch == call.epoch();
  });
  if (!come) return Outcome::failed;
  return known.value == 0 ? Outcome::moves : Outcome::refused;
}

TOKENYARD_DEVICE uint32_t slots_out(const Dispatch& dispatch, uint32_t number) {
  const Link& link = dispatch.params.rails.links[number];
  if (!link.forwards) return 0;
  return dispatch.params.counts() ? dispatch.slots_to(link.host)
                                  : dispatch.params.route.slots_out(number);
}

/// Waits until a token has its places. Called by all lanes.
TOKENYARD_DEVICE bool await_places(const Dispatch& dispatch, uint32_t token) {
  if (!dispatch.params.counts()) return true;
  const uint32_t of_block =
      dispatch.params.route.group_of(token) / dispatch.params.groups_per_block;
  return warp::all(
      dispatch.call.await_epoch(Phase::routes, dispatch.call.rails.tables.routed(of_block)));
}

/// A token of this rank that goes to other hosts, a lane per link.
struct Outgoing {
  uint32_t token;
  bool goes;          ///< over this lane's link
  uint64_t position;  ///< there
};

/// Sends this rank's tokens to other hosts, in their order: claims tokens in turn, and stores each
/// one's slot to the stage of every host that wants it. Each sending warp has one of these; all
/// lanes call its functions, alike.
class Sender {
 public:
  TOKENYARD_DEVICE Sender(const Dispatch& dispatch, Mover& mover)
      : dispatch_(dispatch), call_(dispatch.call), mover_(mover), waits_(dispatch.call) {
    const uint32_t link = warp::lane();
    if (link >= call_.links() || !call_.rails.links[link].forwards) return;
    column_ = call_.rails.columns.host(call_.rails.links[link].host);
    first_out_ = call_.rails.tables.counts(link).first_out;
  }

  /// Returns false if the call has failed.
  TOKENYARD_DEVICE bool send() {
    Outgoing now{}, next{};
    bool is_one = begin_next(now);
    while (is_one) {
      bool is_another = mover_.holds_two() && find(next);
      mover_.take_token(now.token);
      // The copies of the token before end meanwhile; the next row needs its stage.
      finish_stored();
      if (is_another) begin(next);
      if (!store(now)) return false;
      if (!mover_.holds_two()) {
        finish_stored();
        is_another = begin_next(next);
      }
      now = next;
      is_one = is_another;
    }
    finish_stored();
    waits_.add_to(RailStatistics::send_ns);
    return !failed_;
  }

 private:
  TOKENYARD_DEVICE void begin(const Outgoing& out) { mover_.begin_token(out.token); }
  TOKENYARD_DEVICE bool begin_next(Outgoing& out) {
    if (!find(out)) return false;
    begin(out);
    return true;
  }

  /// Claims the next token that goes to any other host; returns false if there is none, or the call
  /// has failed.
  TOKENYARD_DEVICE bool find(Outgoing& out) {
    while (!failed_) {
      out.token = warp::once(
          [&] { return fetch_add<Order::relaxed, Scope::gpu>(&call_.workspace().next_token, 1); });
      if (out.token >= dispatch_.input().tokens) return false;
      failed_ = !await_places(dispatch_, out.token);
      if (failed_) return false;
      const int32_t place =
          column_ == kNone ? -1 : dispatch_.params.route.place(out.token, column_);
      out.goes = place >= 0;
      if (out.goes) out.position = first_out_ + static_cast<uint64_t>(place);
      if (warp::any(out.goes)) return true;
    }
    return false;
  }

  /// Stores the slot that was taken last, once there is room. Returns false if the call has failed.
  TOKENYARD_DEVICE bool store(const Outgoing& out) {
    const uint32_t link = warp::lane();
    bool has_room = true;
    if (!warp::all(!out.goes || has_stage(call_, link, out.position)))
      waits_.time([&] {
        if (out.goes) has_room = await_stage(call_, link, out.position);
        return warp::all(has_room);
      });
    if (!warp::all(has_room)) return false;
    if (out.goes) mover_.store_to(stage_slot(call_, link, out.position));
    stored_ = out;
    return true;
  }

  /// Hands the slots that were stored last to the coordinators, once they are written.
  TOKENYARD_DEVICE void finish_stored() {
    if (stored_.goes) {
      mover_.complete();
      mark_written(call_, warp::lane(), stored_.position);
    }
    stored_.goes = false;
    mover_.let_go();
  }

  const Dispatch& dispatch_;
  const RailCall& call_;
  Mover& mover_;
  RoleWaits waits_;
  uint32_t column_ = kNone;  // Of this lane's link, if its peer forwards.
  uint64_t first_out_ = 0;
  Outgoing stored_{};
  bool failed_ = false;
};

TOKENYARD_DEVICE bool send(const Dispatch& dispatch, Mover& mover) {
  if (dispatch.params.counts() && dispatch.refuses()) return true;
  return Sender(dispatch, mover).send();
}

/// A slot that has arrived, and that this warp alone reads.
struct ClaimedSlot {
  uint32_t link;
  uint32_t number;  ///< in this call
};

/// The claims of a warp: one per link, a lane each, on a slot that may be still to come. A warp
/// takes whichever has arrived, so it never waits for one source while another fills its ring.
/// (Claims of arrived slots alone would need a compare-and-swap, at which the warps of a rank meet:
/// one slot per 0.65 us.)
class SlotClaims {
 public:
  TOKENYARD_DEVICE explicit SlotClaims(const Dispatch& dispatch) : call_(dispatch.call) {
    const uint32_t link = warp::lane();
    last_ = (call_.mover() + block::index()) % kWarpLanes;
    if (link >= call_.links()) return;
    source_ = call_.rails.links[link].rank;
    first_ = call_.rails.tables.counts(link).first_in;
    end_ = first_ + dispatch.params.route.slots_in(link);
    position_ = end_;
    if (first_ != end_) claim();
  }

  // All lanes call these, alike.

  TOKENYARD_DEVICE uint64_t position(const ClaimedSlot& slot) const {
    return warp::shuffle(first_, slot.link) + slot.number;
  }
  /// Returns the rank at the other end of a link.
  TOKENYARD_DEVICE uint32_t source(uint32_t link) const { return warp::shuffle(source_, link); }
  /// Returns whether slots are still to be read.
  TOKENYARD_DEVICE bool any() const { return warp::any(position_ < end_); }
  /// Waits until there is a slot of any source; there must be one to come. Returns false if the
  /// call has failed.
  TOKENYARD_DEVICE bool await() {
    return call_.await_own_by_warp(Phase::slots, [&] { return arrived() != 0; });
  }
  /// Takes a slot that has arrived, if there is one.
  TOKENYARD_DEVICE bool take(ClaimedSlot& slot) {
    const uint32_t links = arrived();
    if (links == 0) return false;
    // Sources in turn.
    const uint32_t behind = links & ~((uint32_t{2} << last_) - 1);
    last_ = first_bit(behind != 0 ? behind : links);
    slot = {last_, static_cast<uint32_t>(warp::shuffle(position_ - first_, last_))};
    if (warp::lane() == last_) claim();
    // Passes on what that lane has acquired.
    warp::sync();
    return true;
  }

 private:
  TOKENYARD_DEVICE void claim() {
    // Relaxed: the word decides who reads a slot, and orders nothing.
    position_ =
        fetch_add<Order::relaxed, Scope::gpu>(&call_.rails.tables.counts(warp::lane()).claimed, 1);
  }
  /// Returns the links whose claimed slot has arrived. Looks again only where the last look did not
  /// show it: each costs a load from far away.
  TOKENYARD_DEVICE uint32_t arrived() {
    if (position_ < end_ && position_ >= seen_) seen_ = has_arrived(call_, warp::lane());
    return warp::ballot(position_ < end_ && position_ < seen_);
  }

  const RailCall& call_;
  uint32_t source_ = 0;
  uint64_t first_ = 0, end_ = 0, position_ = 0;
  uint64_t seen_ = 0;  // Slots before this one have come.
  uint32_t last_;      // The link that came last.
};

/// A slot, or a token of this rank, that a mover has begun to load.
struct Held {
  ClaimedSlot slot;  ///< a token's link is kNone, and its number the token
  /// Its row on this lane's rank, or -1; of a slot whose numbers travel with it, its source's first
  /// row there.
  int32_t row;

  TOKENYARD_DEVICE bool is_near() const { return slot.link == kNone; }
};

/// Stores rows to the ranks of this host: those of slots as they arrive, and this rank's own
/// whenever no slot has. Each mover has one of these; all lanes call its functions, alike.
class StoreHere {
 public:
  TOKENYARD_DEVICE StoreHere(const Dispatch& dispatch, Mover& mover, const Destination& mine)
      : dispatch_(dispatch),
        mover_(mover),
        mine_(mine),
        first_own_row_(is_rank() ? static_cast<int32_t>(dispatch.params.route.first_row(
                                       dispatch.call.params.rank, warp::lane()))
                                 : 0),
        claims_(dispatch),
        deliveries_(dispatch, mine) {}

  /// Returns false if the call has failed.
  TOKENYARD_DEVICE bool run() {
    if (block::index() == 0 && dispatch_.call.mover() == 0) deliveries_.publish_empty();
    RoleWaits waits(dispatch_.call);
    // The slots that are held, the oldest first.
    Held first{}, second{};
    uint32_t held = 0;
    for (;;) {
      Held next{};
      if (mover_.may_begin() && find(next)) {
        // Behind the search: the stores of what was taken last are reading its stage.
        mover_.let_go();
        begin(next);
        (held == 0 ? first : second) = next;
        ++held;
        if (mover_.may_begin() && held == 1) continue;
      }
      if (failed_) return false;
      if (held != 0) {
        finish(first);
        first = second;
        --held;
        continue;
      }
      if (near_left_) continue;
      if (!claims_.any()) break;
      // Watching kernels need not wait with this warp.
      deliveries_.publish_all(mover_);
      if (!waits.time([&] { return claims_.await(); })) return false;
    }
    deliveries_.publish_all(mover_);
    waits.add_to(RailStatistics::forward_ns);
    return !warp::any(dispatch_.call.far_deadline.failed());
  }

 private:
  /// Finds a slot that has arrived, or else a token of this rank for its host. Returns false if
  /// there is none now.
  TOKENYARD_DEVICE bool find(Held& next) {
    if (!claims_.take(next.slot)) return near_left_ && find_near(next);
    const uint32_t source = claims_.source(next.slot.link);
    if (!is_rank()) return true;
    const RailRoute& route = dispatch_.params.route;
    // Under way while the slot is loaded.
    next.row = dispatch_.params.counts()
                   ? static_cast<int32_t>(route.first_row(source, warp::lane()))
                   : route.forwarded(next.slot.link, next.slot.number)[warp::lane()];
    return true;
  }
  /// Returns whether a rank of this host is this lane's.
  TOKENYARD_DEVICE bool is_rank() const { return warp::lane() < dispatch_.hosts().locals; }
  TOKENYARD_DEVICE bool find_near(Held& next) {
    const RailRoute& route = dispatch_.params.route;
    const uint32_t token = warp::once([&] {
      return fetch_add<Order::relaxed, Scope::gpu>(&dispatch_.call.workspace().next_near, 1);
    });
    near_left_ = token < dispatch_.input().tokens;
    if (!near_left_) return false;
    failed_ = !await_places(dispatch_, token);
    if (failed_) return false;
    next.slot = {kNone, token};
    next.row = is_rank() ? route.place(token, mine_.rank) : -1;
    if (next.row >= 0) next.row += first_own_row_;
    if (warp::any(next.row >= 0)) return true;
    deliveries_.note_token();
    return false;
  }

  TOKENYARD_DEVICE void begin(const Held& next) {
    if (next.is_near()) return mover_.begin_token(next.slot.number);
    // Orders the network's stores, which the claim has acquired, before the copy.
    fence_async();
    mover_.begin_slot(ring_slot(dispatch_.call, next.slot.link, claims_.position(next.slot)));
  }

  TOKENYARD_DEVICE void finish(const Held& oldest) {
    if (oldest.is_near()) {
      mover_.take_token(oldest.slot.number);
      mover_.deliver(oldest.row, mine_);
      deliveries_.note_token();
    } else {
      mover_.take();
      const uint64_t position = claims_.position(oldest.slot);
      if (warp::elect()) mark_read(dispatch_.call, oldest.slot.link, position);
      mover_.deliver(row_of(oldest), mine_);
      deliveries_.note_slot(oldest.slot.link);
    }
    deliveries_.publish_now_and_then(mover_);
  }

  /// Returns the row on this lane's rank of the slot that was taken last, and keeps it for later
  /// calls on the route.
  TOKENYARD_DEVICE int32_t row_of(const Held& oldest) const {
    if (!is_rank()) return -1;
    if (!dispatch_.params.counts()) return oldest.row;
    const int32_t number = mover_.number_on(mine_.rank);
    const int32_t row = number < 0 ? -1 : number + oldest.row;
    dispatch_.params.route.forwarded(oldest.slot.link, oldest.slot.number)[warp::lane()] = row;
    return row;
  }

  const Dispatch& dispatch_;
  Mover& mover_;
  const Destination& mine_;
  const int32_t first_own_row_;  // On this lane's rank.
  SlotClaims claims_;
  Deliveries deliveries_;
  bool near_left_ = true;  // Tokens of this rank may be left.
  bool failed_ = false;
};

/// Marks this rank's places that receive no row. Called by each mover.
TOKENYARD_DEVICE void mark_padding(const Dispatch& dispatch) {
  const throughput::DispatchParams& input = dispatch.input();
  const uint32_t rows = input.table.rows_on()[input.call.rank], places = input.call.places;
  const throughput::ReceivedLayout layout = input.received(places);
  std::byte* const beside = input.call.arenas.mine() +
                            size_t{input.call.beside_at} * throughput::kOffsetUnit -
                            layout.beside_bytes();
  const RailCall& call = dispatch.call;
  const uint32_t warps = call.movers() * grid::blocks();
  const uint32_t mover = block::index() * call.movers() + call.mover();
  for (uint32_t row = rows + mover * kWarpLanes + warp::lane(); row < places;
       row += warps * kWarpLanes) {
    for (uint32_t choice = 0; choice < input.topk; ++choice) {
      const size_t index = size_t{row} * input.topk + choice;
      reinterpret_cast<int32_t*>(beside + layout.ids_at())[index] = -1;
      reinterpret_cast<float*>(beside + layout.weights_at())[index] = 0;
    }
    reinterpret_cast<int32_t*>(beside + layout.sources_at())[row] = -1;
  }
}

/// Moves rows as long as there are any. Called by each mover.
TOKENYARD_DEVICE void move_rows(const Dispatch& dispatch, Mover& mover) {
  if (dispatch.call.mover() < dispatch.params.senders && !send(dispatch, mover)) return;
  // The coordinator drops the slots of a call that is refused.
  if (await_known(dispatch.call) != Outcome::moves) return;
  const Destination mine = Destination::mine(dispatch);
  if (StoreHere(dispatch, mover, mine).run() && dispatch.params.counts()) mark_padding(dispatch);
}

/// The work of a warp that moves rows.
TOKENYARD_DEVICE void move(const Dispatch& dispatch) {
  Mover mover(dispatch);
  move_rows(dispatch, mover);
  mover.take_all();
  mover.complete();
}

/// Puts this rank's slots to its rail peers. Called by one warp per block.
TOKENYARD_DEVICE void coordinate_sends(const Dispatch& dispatch) {
  greet_rails(dispatch.call, DispatchWords{dispatch});
  each_own_link(dispatch.call, [&](uint32_t link) {
    RingFiller(dispatch.call, link, slots_out(dispatch, link)).fill();
  });
}

/// Passes greetings on, then gives read slots back to their sources. Called by one warp per block.
TOKENYARD_DEVICE void coordinate_forwards(const Dispatch& dispatch) {
  const RailCall& call = dispatch.call;
  if (!pass_on_greetings(call, dispatch.input().partition, dispatch.params.counts(),
                         dispatch.tail.greeting()))
    return;
  const Outcome outcome = await_known(call);
  if (outcome == Outcome::failed) return;
  each_own_link(call, [&](uint32_t link) {
    const uint32_t slots = dispatch.params.route.slots_in(link);
    outcome == Outcome::moves ? RingDrainer(call, link, slots).drain(Phase::slots)
                              : drop_slots(call, link, slots);
  });
}

TOKENYARD_DEVICE void run_role(const Dispatch& dispatch) {
  switch (warp::index()) {
    case kSendCoordinator:
      return coordinate_sends(dispatch);
    case kForwardCoordinator:
      return coordinate_forwards(dispatch);
    case kReceiver:
      if (block::index() == 0) Receiver(dispatch).receive();
      return;
    default:
      move(dispatch);
      end_moves(dispatch.call);
  }
}

TOKENYARD_DEVICE void dispatch_between_hosts(const DispatchParams& params) {
  grid::wait_for_previous();
  auto& shared = block::shared<RailShared>();
  DispatchTail tail = DispatchTail::of(params, warp::count());
  tail.base = block::shared_tail<RailShared>();
  const RailDeadlines deadlines(params.dispatch.call.wait_context);
  const RailCall call{params.dispatch.call, params.rails,    shared,
                      deadlines.words,      deadlines.rings, deadlines.host};
  if (!begin_rail_call(call.params, call.workspace(), shared, call.deadline)) return;
  const Dispatch dispatch{params, tail, call};
  if (params.counts()) count_tokens(dispatch);
  if (!block::any(call.far_deadline.failed())) run_role(dispatch);
  end_rail_call(
      call, [&](uint32_t link) { return slots_out(dispatch, link); },
      [&](uint32_t link) { return params.route.slots_in(link); });
}

TOKENYARD_DEFINE_KERNEL(dispatch_kernel, dispatch_between_hosts, DispatchParams, RailShared,
                        kThreadsMax)

}  // namespace tokenyard::internode
