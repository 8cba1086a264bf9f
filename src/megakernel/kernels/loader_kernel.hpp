/// The feeder, the loading lane that brings packets into shared memory ahead of the tasks. Lanes of
/// loading warps are independent of one another, and only some of them have work; the others are in
/// streaming_kernel.hpp.
#pragma once

#include "megakernel/kernels/host_feed_kernel.hpp"
#include "megakernel/kernels/launch_kernel.hpp"

namespace tokenyard::megakernel {

inline constexpr uint32_t kFeederLane = 31;
static_assert(kComputeWarpsMax <= kFeederLane);

/// Polls between checks for the end of the run, which cost time and are not urgent.
inline constexpr uint32_t kPollsBetweenEnds = 8;

/// Waits until the condition holds; returns false if the compute warps have ended or the run has
/// failed. Called by one lane of a loading warp. The condition must not sleep
/// (Completion::done_now): the hardware would put all lanes of the warp to sleep with it.
template <class Condition>
TOKENYARD_DEVICE bool loader_waits(const Working& working, RunPhase phase, Condition condition) {
  Awaited what{.phase = phase_of(working.params, phase), .rank = working.params.rank};
  bool over = false;
  uint32_t polls = 0;
  const bool held = wait_until(working.idle_deadline(), what, [&] {
    if (condition()) return true;
    return over = ++polls % kPollsBetweenEnds == 0 && ended(working);
  });
  return held && !over;
}

/// Waits for a copy into shared memory, since a block must not end while one is in flight, not even
/// after a failure. Copies come from this GPU's own memory, so they land within microseconds (a
/// simulated one may take some thousand naps); the bound is for a copy that was never started.
TOKENYARD_DEVICE void let_land(Completion& full, uint32_t parity) {
  constexpr uint32_t kNaps = 50'000, kNapNs = 500;
  for (uint32_t naps = 0; naps < kNaps && !full.done(parity); ++naps) nap(kNapNs);
}

/// Lane kFeederLane: pushes packets in the order of the worker's queue, or as schedulers assign
/// them (`scheduled`: whether the kernel supports schedulers).
template <bool scheduled>
class Feeder {
 public:
  TOKENYARD_DEVICE explicit Feeder(const Working& working) : working_(working) {}

  TOKENYARD_DEVICE void run() {
    if (!scheduled || working_.params.dynamic.schedulers == 0)
      walk_queue();
    else if constexpr (scheduled)
      serve_orders();
    drain();
  }

 private:
  /// Pushes the worker's own tasks, iteration after iteration, in a static run.
  TOKENYARD_DEVICE void walk_queue() {
    const RunParams& params = working_.params;
    const uint32_t begin = params.queues[block::index()], end = params.queues[block::index() + 1];
    for (uint64_t iteration = params.first; more(iteration); ++iteration) {
      if (cancelled(working_, iteration, block::index() == 0)) return;
      for (uint32_t position = begin; position < end; ++position)
        if (!push_task(position, iteration)) return;
      if (!push({.iteration = iteration, .kind = NoteKind::turn})) return;
    }
    push({.iteration = 0, .kind = NoteKind::end});
  }

  /// Pushes packets as the compute warps order them, one at a time, in a dynamic run. The first is
  /// that of the worker's first ticket.
  TOKENYARD_DEVICE void serve_orders() {
    const DynamicParams& dynamic = working_.params.dynamic;
    for (uint32_t i = 0; i < dynamic.schedulers; ++i)
      working_.shared.heads[i] = dynamic.heads[block::index() * dynamic.schedulers + i];
    iteration_ = working_.params.first;
    ticket_ = dynamic.first_ticket;
    for (PacketOrder order = PacketOrder::next(0, true);;) {
      if (order.ticket_used()) holds_ticket_ = false;
      if (!(order.place() == 0 ? push_expected() : push_ordered(order))) return;
      if (!loader_waits(working_, RunPhase::packet, [&] { return take_order(order); })) return;
    }
  }
  TOKENYARD_DEVICE bool take_order(PacketOrder& order) const {
    // Relaxed first, which suffices for most orders; acquire if the order has an iteration.
    order.bits = load<Order::relaxed, Scope::block>(&working_.shared.order);
    if (order.bits == 0) return false;
    if (order.has_iteration()) load<Order::acquire, Scope::block>(&working_.shared.order);
    store<Order::relaxed, Scope::block>(&working_.shared.order, 0);
    return true;
  }

  /// Draws the next ticket, and computes its task in the case that tasks come in the expected
  /// order.
  TOKENYARD_DEVICE void draw() {
    const DynamicParams& dynamic = working_.params.dynamic;
    // Relaxed: it only selects a slot.
    const uint64_t ticket = fetch_add<Order::relaxed, Scope::gpu>(dynamic.drawn, 1);
    uint64_t at = expected_ + (ticket - ticket_);
    ticket_ = ticket;
    holds_ticket_ = true;
    if (dynamic.queued == 0) return;
    for (; at >= dynamic.queued; at -= dynamic.queued) ++iteration_;
    expected_ = static_cast<uint32_t>(at);
  }

  /// Pushes the packet that the worker's ticket should bring. Called while the previous task runs.
  TOKENYARD_DEVICE bool push_expected() {
    if (!holds_ticket_) draw();
    const PacketPlace place = working_.params.dynamic.place_at(expected_);
    if (!await_slot()) return false;
    working_.shared.tickets[cursor_.slot] = {.number = ticket_, .place = place};
    return push_packet(place.from(), place.bytes(),
                       {.iteration = iteration_, .kind = NoteKind::expected});
  }
  /// Pushes a task that will run: a follower, in the iteration of the previous task, or a task
  /// other than the expected one.
  TOKENYARD_DEVICE bool push_ordered(PacketOrder order) {
    const PacketPlace place{order.place()};
    if (order.has_iteration())
      return push_packet(place.from(), place.bytes(),
                         {.iteration = working_.shared.ordered_iteration, .kind = NoteKind::task});
    return push_packet(place.from(), place.bytes(),
                       {.iteration = pushed_iteration_, .kind = NoteKind::follower});
  }

  /// Returns whether there is an iteration of this number, as far as can be known in advance: a
  /// loop with an event continues until the compute warps end it.
  TOKENYARD_DEVICE bool more(uint64_t iteration) {
    const RunParams& params = working_.params;
    if (params.fed) return await_turn(iteration);
    return params.iterations == 0 || iteration - params.first < params.iterations;
  }

  /// Waits for the permission for an iteration, in a fed run: worker 0 asks the host, the others
  /// ask worker 0.
  TOKENYARD_DEVICE bool await_turn(uint64_t iteration) {
    const RunParams& params = working_.params;
    const auto done = static_cast<uint32_t>(iteration - params.first);
    if (block::index() == 0) ask(done);
    bool goes_on = false;
    loader_waits(working_, RunPhase::host, [&] {
      // Acquire: what the host wrote before it fed the iteration is visible to its tasks.
      const Turn turn{load<Order::acquire, Scope::gpu>(&params.workspace->turn)};
      goes_on = turn.run() == params.run && turn.allowed() > done;
      return goes_on || (turn.run() == params.run && turn.all());
    });
    return goes_on;
  }

  /// Asks the host, by worker 0, once all workers have ended all allowed iterations.
  TOKENYARD_DEVICE void ask(uint32_t done) {
    const RunParams& params = working_.params;
    const uint64_t ended_by_all = params.workers * (params.first + done);
    // Acquire: everything that the iterations have written.
    if (!loader_waits(working_, RunPhase::host, [&] {
          return load<Order::acquire, Scope::gpu>(&params.workspace->ended) >= ended_by_all;
        }))
      return;
    const Turn turn = ask_host(working_, done);
    if (turn.allowed() > done || turn.all())
      store<Order::release, Scope::gpu>(&params.workspace->turn, turn.bits);
  }

  TOKENYARD_DEVICE bool push_task(uint32_t position, uint64_t iteration) {
    const uint32_t* const positions = working_.params.positions;
    const uint32_t from = positions[position] * kPacketAlignment;
    return push_packet(from, positions[position + 1] * kPacketAlignment - from,
                       {.iteration = iteration, .kind = NoteKind::task});
  }
  TOKENYARD_DEVICE bool push_packet(size_t from, uint32_t bytes, const Note& note) {
    if (!await_slot()) return false;
    WorkerShared& shared = working_.shared;
    shared.notes[cursor_.slot] = note;
    if constexpr (scheduled) pushed_iteration_ = note.iteration;
    shared.packet_full[cursor_.slot].arrive_expect(bytes);
    bulk::load(shared.packets[cursor_.slot], working_.params.packets + from, bytes,
               shared.packet_full[cursor_.slot]);
    cursor_.next(kPacketSlots);
    return true;
  }

  TOKENYARD_DEVICE bool push(const Note& note) {
    if (!await_slot()) return false;
    working_.shared.notes[cursor_.slot] = note;
    working_.shared.packet_full[cursor_.slot].arrive();  // A release: it publishes the note.
    cursor_.next(kPacketSlots);
    return true;
  }

  TOKENYARD_DEVICE bool await_slot() {
    if (cursor_.lap == 0) return true;
    Completion& empty = working_.shared.packet_empty[cursor_.slot];
    return loader_waits(working_, RunPhase::packet,
                        [&] { return empty.done_now((cursor_.lap - 1) & 1); });
  }

  TOKENYARD_DEVICE void drain() {
    // The slots of the last lap, from the oldest on.
    for (uint32_t slot = 0; slot < kPacketSlots; ++slot) {
      const uint32_t lap = slot < cursor_.slot ? cursor_.lap : cursor_.lap - 1;
      if (slot < cursor_.slot || cursor_.lap > 0)
        let_land(working_.shared.packet_full[slot], lap & 1);
    }
  }

  const Working& working_;
  RingCursor cursor_;
  // Dynamic runs only:
  bool holds_ticket_ = false;
  uint32_t expected_ = 0;          ///< position of the task that the ticket should bring
  uint64_t ticket_ = 0;            ///< drawn last
  uint64_t iteration_ = 0;         ///< of the ticket
  uint64_t pushed_iteration_ = 0;  ///< of the previous packet
};

}  // namespace tokenyard::megakernel
