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

/// Stores a token's slot to the stage of each host that wants it, a lane per link. Called by all
/// lanes. Returns false if the call has failed.
TOKENYARD_DEVICE bool send_token(const Dispatch& dispatch, Mover& mover, RoleWaits& waits,
                                 uint32_t token) {
  const RailCall& call = dispatch.call;
  const auto position_on = [&](uint32_t link, uint64_t& position) {
    if (link >= call.links() || !call.rails.links[link].forwards) return false;
    const int32_t place = dispatch.params.route.place(
        token, dispatch.params.rails.columns.host(call.rails.links[link].host));
    position = call.rails.tables.counts(link).first_out + static_cast<uint64_t>(place);
    return place >= 0;
  };
  bool built = false, stored = true;
  for (uint32_t first = 0; first < call.links(); first += kWarpLanes) {
    const uint32_t link = first + warp::lane();
    uint64_t position = 0;
    const bool goes = position_on(link, position);
    if (!warp::any(goes)) continue;
    if (!built) mover.build(token);
    built = true;
    if (!warp::all(!goes || has_stage(call, link, position)))
      waits.time([&] {
        if (goes) stored = await_stage(call, link, position);
        return warp::all(stored);
      });
    if (goes) {
      if (stored) mover.store_to(stage_slot(call, link, position));
      mover.complete();
      if (stored) mark_written(call, link, position);
    }
    if (!warp::all(stored)) break;
  }
  if (built) mover.let_go();
  return warp::all(stored);
}

/// Sends this rank's tokens to other hosts, in their order. Called by each sending warp.
TOKENYARD_DEVICE bool send(const Dispatch& dispatch, Mover& mover) {
  if (dispatch.params.counts() && dispatch.refuses()) return true;
  RoleWaits waits(dispatch.call);
  for (;;) {
    const uint32_t token = warp::once([&] {
      return fetch_add<Order::relaxed, Scope::gpu>(&dispatch.call.workspace().next_token, 1);
    });
    if (token >= dispatch.input().tokens) break;
    if (!await_places(dispatch, token) || !send_token(dispatch, mover, waits, token)) return false;
  }
  waits.add_to(RailStatistics::send_ns);
  return true;
}

/// Stores the next token of this rank that is for its own host. Called by all lanes of a mover.
/// `left`: whether there may be more. Returns false if the call has failed.
TOKENYARD_DEVICE bool send_near(const Dispatch& dispatch, Mover& mover, const Destination& mine,
                                bool& left) {
  const Hosts& hosts = dispatch.hosts();
  const RailRoute& route = dispatch.params.route;
  const uint32_t token = warp::once([&] {
    return fetch_add<Order::relaxed, Scope::gpu>(&dispatch.call.workspace().next_near, 1);
  });
  left = token < dispatch.input().tokens;
  if (!left) return true;
  if (!await_places(dispatch, token)) return false;
  int32_t row = -1;
  if (warp::lane() < hosts.locals) {
    row = route.place(token, hosts.local(warp::lane()));
    if (row >= 0)
      row += static_cast<int32_t>(route.first_row(dispatch.call.params.rank, warp::lane()));
  }
  if (!warp::any(row >= 0)) return true;
  mover.build(token);
  mover.deliver(row, mine);
  mover.let_go();
  return true;
}

/// A slot that has arrived, and that this warp alone reads.
struct ClaimedSlot {
  uint32_t link;
  uint32_t number;  ///< in this call
  uint64_t position;
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
    first_ = call_.rails.tables.counts(link).first_in;
    end_ = first_ + dispatch.params.route.slots_in(link);
    position_ = end_;
    if (first_ != end_) claim();
  }

  // All lanes call these, alike.

  /// Returns whether slots are still to be read.
  TOKENYARD_DEVICE bool any() const { return warp::any(position_ < end_); }
  /// Returns whether `next` would find a slot at once.
  TOKENYARD_DEVICE bool have_arrived() const {
    return warp::any(position_ < end_ && has_arrived(call_, warp::lane()) > position_);
  }
  /// Waits for a slot of any source; there must be one to come. Returns false if the call has
  /// failed.
  TOKENYARD_DEVICE bool next(ClaimedSlot& slot) {
    uint32_t arrived = 0;
    const bool come = call_.await_own_by_warp(Phase::slots, [&] {
      arrived = warp::ballot(position_ < end_ && has_arrived(call_, warp::lane()) > position_);
      return arrived != 0;
    });
    if (!come) return false;
    // Sources in turn.
    const uint32_t behind = arrived & ~((uint32_t{2} << last_) - 1);
    last_ = first_bit(behind != 0 ? behind : arrived);
    slot.link = last_;
    slot.position = warp::shuffle(position_, last_);
    slot.number = static_cast<uint32_t>(slot.position - warp::shuffle(first_, last_));
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

  const RailCall& call_;
  uint64_t first_ = 0, end_ = 0, position_ = 0;
  uint32_t last_;  // The link that came last.
};

/// Returns the row on this lane's rank of a slot that a source has sent, and keeps it for later
/// calls on the route. Called by all lanes.
TOKENYARD_DEVICE int32_t forwarded_row(const Dispatch& dispatch, const Mover& mover,
                                       const ClaimedSlot& slot) {
  if (warp::lane() >= dispatch.hosts().locals) return -1;
  int32_t& kept = dispatch.params.route.forwarded(slot.link, slot.number)[warp::lane()];
  if (!dispatch.params.counts()) return kept;
  const int32_t number = mover.number_on(dispatch.hosts().local(warp::lane()));
  const uint32_t source = dispatch.call.rails.links[slot.link].rank;
  kept = number < 0
             ? -1
             : number + static_cast<int32_t>(dispatch.params.route.first_row(source, warp::lane()));
  return kept;
}

/// Hands a slot of another host to the ranks of this one. Called by all lanes of a mover.
TOKENYARD_DEVICE void forward(const Dispatch& dispatch, Mover& mover, const Destination& mine,
                              const ClaimedSlot& slot) {
  // Orders the network's stores, which the claim has acquired, before the copy.
  fence_async();
  mover.load(ring_slot(dispatch.call, slot.link, slot.position));
  if (warp::elect()) mark_read(dispatch.call, slot.link, slot.position);
  mover.deliver(forwarded_row(dispatch, mover, slot), mine);
  mover.let_go();
}

/// Stores rows to the ranks of this host: those of slots as they arrive, and this rank's own
/// whenever no slot has. Called by each mover. Returns false if the call has failed.
TOKENYARD_DEVICE bool store_here(const Dispatch& dispatch, Mover& mover, const Destination& mine) {
  SlotClaims claims(dispatch);
  Deliveries deliveries(dispatch, mine);
  if (block::index() == 0 && dispatch.call.mover() == 0) deliveries.publish_empty();
  const auto store_near = [&](bool& left) {
    if (!send_near(dispatch, mover, mine, left)) return false;
    if (left) deliveries.note_token();
    deliveries.publish_now_and_then(mover);
    return true;
  };
  RoleWaits waits(dispatch.call);
  ClaimedSlot slot;
  bool near = true;
  while (claims.any()) {
    if (near && !claims.have_arrived()) {
      if (!store_near(near)) return false;
      continue;
    }
    // Watching kernels need not wait with this warp.
    if (!claims.have_arrived()) {
      deliveries.publish_all(mover);
      if (!waits.time([&] { return claims.next(slot); })) return false;
    } else if (!claims.next(slot)) {
      return false;
    }
    forward(dispatch, mover, mine, slot);
    deliveries.note_slot(slot.link);
    deliveries.publish_now_and_then(mover);
  }
  while (near)
    if (!store_near(near)) return false;
  deliveries.publish_all(mover);
  waits.add_to(RailStatistics::forward_ns);
  return !warp::any(dispatch.call.far_deadline.failed());
}

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
  if (store_here(dispatch, mover, mine) && dispatch.params.counts()) mark_padding(dispatch);
}

/// The work of a warp that moves rows.
TOKENYARD_DEVICE void move(const Dispatch& dispatch) {
  Mover mover(dispatch);
  move_rows(dispatch, mover);
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
