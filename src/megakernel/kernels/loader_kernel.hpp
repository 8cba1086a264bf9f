/// The last warp of a worker: it brings packets, and what tasks stream, into shared memory, ahead
/// of the tasks. Its lanes are independent of one another, and of them only some have work. Here is
/// the one that brings packets; streaming_kernel.hpp has the others.
#pragma once

#include "megakernel/kernels/host_feed_kernel.hpp"
#include "megakernel/kernels/launch_kernel.hpp"

namespace tokenyard::megakernel {

inline constexpr uint32_t kFeederLane = 31;
static_assert(kComputeWarpsMax <= kFeederLane);

/// Whether the run has ended need not be known at once, and a look at it is not free.
inline constexpr uint32_t kPollsBetweenEnds = 8;

/// Waits that a loader's lane may leave because the compute warps have ended. Its condition must
/// not sleep (Completion::done_now): the hardware would put all lanes of the warp to sleep with it.
template <class Condition>
DEVICE bool loader_waits(const Working& working, RunPhase phase, Condition condition) {
  Awaited what{.phase = phase_of(working.params, phase), .rank = working.params.rank};
  bool over = false;
  uint32_t polls = 0;
  const bool held = wait_until(working.idle_deadline(), what, [&] {
    if (condition()) return true;
    return over = ++polls % kPollsBetweenEnds == 0 && ended(working);
  });
  return held && !over;
}

/// A block must not end while copies into its shared memory are under way, not even after a
/// failure. They come from this GPU's own memory, so they land within microseconds (a simulated one
/// may take some thousand naps to deliver them); the bound is for what was never started.
DEVICE void let_land(Completion& full, uint32_t parity) {
  constexpr uint32_t kNaps = 50'000, kNapNs = 500;
  for (uint32_t naps = 0; naps < kNaps && !full.done(parity); ++naps) nap(kNapNs);
}

/// Lane kFeederLane: pushes packets in the order of the worker's queue, or as schedulers give them
/// (`scheduled`: where there can be any).
template <bool scheduled>
class Feeder {
 public:
  DEVICE explicit Feeder(const Working& working) : working_(working) {}

  DEVICE void run() {
    if (!scheduled || working_.params.dynamic.schedulers == 0)
      walk_queue();
    else if constexpr (scheduled)
      serve_orders();
    drain();
  }

 private:
  /// A static run: the worker's own tasks, iteration after iteration.
  DEVICE void walk_queue() {
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

  /// A dynamic run: what the compute warps order, a packet at a time. The first is that of the
  /// worker's first ticket.
  DEVICE void serve_orders() {
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
  DEVICE bool take_order(PacketOrder& order) const {
    // Relaxed first, and for most all there is: acquire, if it comes with an iteration.
    order.bits = load<Order::relaxed, Scope::block>(&working_.shared.order);
    if (order.bits == 0) return false;
    if (order.has_iteration()) load<Order::acquire, Scope::block>(&working_.shared.order);
    store<Order::relaxed, Scope::block>(&working_.shared.order, 0);
    return true;
  }

  /// The next ticket, and of which of an iteration's tasks it is, were they to come in their order.
  DEVICE void draw() {
    const DynamicParams& dynamic = working_.params.dynamic;
    // Relaxed: it only says which slot.
    const uint64_t ticket = fetch_add<Order::relaxed, Scope::gpu>(dynamic.drawn, 1);
    uint64_t at = expected_ + (ticket - ticket_);
    ticket_ = ticket;
    holds_ticket_ = true;
    if (dynamic.queued == 0) return;
    for (; at >= dynamic.queued; at -= dynamic.queued) ++iteration_;
    expected_ = static_cast<uint32_t>(at);
  }

  /// The packet that the worker's ticket should bring. Drawn while the task before it runs.
  DEVICE bool push_expected() {
    if (!holds_ticket_) draw();
    const PacketPlace place = working_.params.dynamic.place_at(expected_);
    if (!await_slot()) return false;
    working_.shared.tickets[cursor_.slot] = {.number = ticket_, .place = place};
    return push_packet(place.from(), place.bytes(),
                       {.iteration = iteration_, .kind = NoteKind::expected});
  }
  /// A task that runs: a follower, of the iteration of the task before it, or another one than was
  /// expected.
  DEVICE bool push_ordered(PacketOrder order) {
    const PacketPlace place{order.place()};
    if (order.has_iteration())
      return push_packet(place.from(), place.bytes(),
                         {.iteration = working_.shared.ordered_iteration, .kind = NoteKind::task});
    return push_packet(place.from(), place.bytes(),
                       {.iteration = pushed_iteration_, .kind = NoteKind::follower});
  }

  /// Whether there is an iteration of this number, as far as one can know ahead of it: a loop with
  /// an event goes on until the compute warps say otherwise.
  DEVICE bool more(uint64_t iteration) {
    const RunParams& params = working_.params;
    if (params.fed) return await_turn(iteration);
    return params.iterations == 0 || iteration - params.first < params.iterations;
  }

  /// A fed run: worker 0 asks the host, the others ask worker 0.
  DEVICE bool await_turn(uint64_t iteration) {
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

  /// By worker 0, once all have ended what was allowed.
  DEVICE void ask(uint32_t done) {
    const RunParams& params = working_.params;
    const uint64_t ended_by_all = params.workers * (params.first + done);
    // Acquire: all that the iterations have written.
    if (!loader_waits(working_, RunPhase::host, [&] {
          return load<Order::acquire, Scope::gpu>(&params.workspace->ended) >= ended_by_all;
        }))
      return;
    const Turn turn = ask_host(working_, done);
    if (turn.allowed() > done || turn.all())
      store<Order::release, Scope::gpu>(&params.workspace->turn, turn.bits);
  }

  DEVICE bool push_task(uint32_t position, uint64_t iteration) {
    const uint32_t* const positions = working_.params.positions;
    const uint32_t from = positions[position] * kPacketAlignment;
    return push_packet(from, positions[position + 1] * kPacketAlignment - from,
                       {.iteration = iteration, .kind = NoteKind::task});
  }
  DEVICE bool push_packet(size_t from, uint32_t bytes, const Note& note) {
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

  DEVICE bool push(const Note& note) {
    if (!await_slot()) return false;
    working_.shared.notes[cursor_.slot] = note;
    working_.shared.packet_full[cursor_.slot].arrive();  // A release: it publishes the note.
    cursor_.next(kPacketSlots);
    return true;
  }

  DEVICE bool await_slot() {
    if (cursor_.lap == 0) return true;
    Completion& empty = working_.shared.packet_empty[cursor_.slot];
    return loader_waits(working_, RunPhase::packet,
                        [&] { return empty.done_now((cursor_.lap - 1) & 1); });
  }

  DEVICE void drain() {
    // The slots of the last lap, from the oldest on.
    for (uint32_t slot = 0; slot < kPacketSlots; ++slot) {
      const uint32_t lap = slot < cursor_.slot ? cursor_.lap : cursor_.lap - 1;
      if (slot < cursor_.slot || cursor_.lap > 0)
        let_land(working_.shared.packet_full[slot], lap & 1);
    }
  }

  const Working& working_;
  RingCursor cursor_;
  // Of dynamic runs:
  bool holds_ticket_ = false;
  uint32_t expected_ = 0;          ///< which of an iteration's tasks the ticket should bring
  uint64_t ticket_ = 0;            ///< the last drawn
  uint64_t iteration_ = 0;         ///< of the ticket
  uint64_t pushed_iteration_ = 0;  ///< of the packet before
};

}  // namespace tokenyard::megakernel
