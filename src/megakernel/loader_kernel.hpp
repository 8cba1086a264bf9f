/// The last warp of a worker: it brings packets, and what tasks stream, into shared memory, ahead
/// of the tasks. Its lanes are independent of one another, and of them only some have work. Here is
/// the one that brings packets; streaming_kernel.hpp has the others.
#pragma once

#include "megakernel/host_feed_kernel.hpp"
#include "megakernel/launch_kernel.hpp"

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
/// failure. They come from this GPU's own memory, so they land within microseconds; the bound is
/// for what was never started.
DEVICE void let_land(Completion& full, uint32_t parity) {
  constexpr uint32_t kNaps = 2000, kNapNs = 500;
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
      take_tasks();
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

  /// A dynamic run: whatever schedulers give this worker. One task more than runs is taken, so that
  /// it is here in time; whatever else is ready, others may have.
  DEVICE void take_tasks() {
    const DynamicParams& dynamic = working_.params.dynamic;
    const uint32_t schedulers = dynamic.schedulers, worker = block::index();
    uint64_t* const kept = dynamic.heads + worker * schedulers;
    uint64_t* const heads = working_.shared.heads;
    for (uint32_t i = 0; i < schedulers; ++i) heads[i] = kept[i];
    for (uint32_t from = 0;;) {
      if (!await_place_ahead()) return;
      uint32_t value = 0;
      bool follower = false;
      if (!loader_waits(working_, RunPhase::packet, [&] {
            follower = take_follower(value);
            if (follower) return true;
            from = from + 1 < schedulers ? from + 1 : 0;
            return dynamic.task_queue(worker, from).peek<Scope::gpu>(heads[from], value);
          }))
        return;
      // The packet's way begins before the slot is freed, which is a fence.
      const bool goes_on =
          value == kStop ? push({.iteration = 0, .kind = NoteKind::end}) : push_taken({value});
      if (!follower) {
        dynamic.task_queue(worker, from).free<Scope::gpu>(heads[from]);
        kept[from] = ++heads[from];
      }
      if (value == kStop || !goes_on) return;
    }
  }

  DEVICE bool take_follower(uint32_t& place) {
    uint32_t* const follower = &working_.shared.follower;
    // Relaxed: see bring_follower.
    place = load<Order::relaxed, Scope::block>(follower);
    if (place == 0) return false;
    store<Order::relaxed, Scope::block>(follower, 0);
    return true;
  }

  /// Until the packet before the last has been read by all.
  DEVICE bool await_place_ahead() {
    constexpr uint32_t kAhead = 2;
    const uint32_t pushed = cursor_.lap * kPacketSlots + cursor_.slot;
    if (pushed < kAhead) return true;
    const uint32_t oldest = pushed - kAhead;
    Completion& empty = working_.shared.packet_empty[oldest % kPacketSlots];
    return loader_waits(working_, RunPhase::packet,
                        [&] { return empty.done_now(oldest / kPacketSlots & 1); });
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
    if (!await_slot()) return false;
    const RunParams& params = working_.params;
    WorkerShared& shared = working_.shared;
    const uint32_t from = params.positions[position] * kPacketAlignment;
    const uint32_t bytes = params.positions[position + 1] * kPacketAlignment - from;
    shared.notes[cursor_.slot] = {.iteration = iteration, .kind = NoteKind::task};
    shared.packet_full[cursor_.slot].arrive_expect(bytes);
    bulk::load(shared.packets[cursor_.slot], params.packets + from, bytes,
               shared.packet_full[cursor_.slot]);
    cursor_.next(kPacketSlots);
    return true;
  }

  /// The packet's way takes longer than the iteration's: they travel together.
  DEVICE bool push_taken(PacketPlace place) {
    if (!await_slot()) return false;
    const RunParams& params = working_.params;
    WorkerShared& shared = working_.shared;
    Completion& full = shared.packet_full[cursor_.slot];
    bulk::load(shared.packets[cursor_.slot], params.packets + place.from(), place.bytes(), full);
    // Relaxed: it was written before anything of the iteration was put into a queue.
    const uint64_t iteration = load<Order::relaxed, Scope::gpu>(&params.workspace->iteration);
    shared.notes[cursor_.slot] = {.iteration = iteration, .kind = NoteKind::task};
    full.arrive_expect(place.bytes());  // What has come before is counted.
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
};

}  // namespace tokenyard::megakernel
