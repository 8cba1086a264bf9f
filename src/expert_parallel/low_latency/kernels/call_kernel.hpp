/// How a low-latency kernel begins, and with whom it speaks.
///
///     begin_call      every thread takes the epoch
///     open_call       one block tells the active ranks which buffers are free again; a sending
///                     block waits until its destinations' buffers are
///     advance_epoch   of the block's words, once it has met
///     close_call      for whoever measures
///
/// A look at memory takes about as long as ten of them do, and what a call may not do before them
/// it does that much later: looks are made together, and none that needs another's answer. What
/// a role can load without knowing with whom it speaks, it loads between the two.
#pragma once

#include <bit>

#include "device/dependent_launch.hpp"
#include "expert_parallel/low_latency/kernels/liveness_kernel.hpp"

namespace tokenyard::low_latency {

using tokenyard::settled;

/// The same place, to be kept in registers: a compiler works out again what it can, and after a
/// wait every instruction is felt.
template <class T>
DEVICE Peer<T> settled(Peer<T> place) {
  return Peer<T>(settled(place.address()));
}

/// Calls that follow one another start early: the next one's blocks are there when this one ends.
/// A call that is to leave multiprocessors to others does not ask for it. Before this, a block may
/// go by the launch's parameters alone: what lies in memory the kernels before may yet write.
DEVICE Call begin_call(const CallParams& params, CallShared& shared, Kind kind) {
  grid::wait_for_previous();
  const uint64_t start_ns = now_ns();
  // Nobody else writes this block's word while the kernel runs. Relaxed all the same, and of an
  // address that each thread makes itself: a compiler that takes the word for the block's, and not
  // for a thread's, keeps it elsewhere, and waits for it before the kernel goes on.
  const uint32_t block = block::index() + (thread::index() < block::threads() ? 0 : 1);
  const auto before = load<Order::relaxed, Scope::gpu>(
      &params.workspace->progress[static_cast<uint32_t>(kind)][block]);
  if (params.whole_gpu && warp::index() == 0) grid::let_next_start();
  return {.params = params, .shared = shared, .kind = kind, .before = before, .start_ns = start_ns};
}

/// By the whole block, once, when it has met since its threads read its word, and where nobody
/// waits for it: a sending block does so last, a receiving one before what it has to wait for.
DEVICE void advance_epoch(const Call& call) {
  const CallParams& params = call.params;
  const Progress now{.sent = sends(params.part) ? call.epoch() : call.before.sent,
                     .received = receives(params.part) ? call.epoch() : call.before.received};
  Progress* const words = params.workspace->progress[static_cast<uint32_t>(call.kind)];
  KEEP_ROLLED for (uint32_t i = block::index() + thread::index() * grid::blocks(); i < kBlocksMax;
                   i += block::threads() * grid::blocks()) words[i] = now;
}

/// By one thread: a rank that the caller leaves out is masked as if it had not answered, since what
/// it may send meanwhile is not received.
DEVICE void leave_out(const Call& call, uint32_t rank) {
  const WaitContext wait_context = call.params.masks.wait_context(rank);
  Deadline(wait_context, call.start_ns)
      .fail(Failure::refused,
            Awaited{.phase = static_cast<uint32_t>(Phase::left_out), .rank = rank});
}

/// By one thread. Relaxed: the word says which batch it belongs to and speaks of nothing else.
DEVICE void publish_weight(Peer<Stamped> to, uint32_t dispatched, float weight) {
  store<Order::relaxed, Scope::sys>(to, Stamped{dispatched, std::bit_cast<uint32_t>(weight)});
}

/// The block that speaks for the rank: the last one, which of few tokens has none, since a release
/// to peers takes more than a microsecond. A grid has no more blocks than there are
/// multiprocessors, so this one is never kept from them by its own rank's that wait.
DEVICE bool speaks() {
  return block::index() == grid::blocks() - 1;
}

/// By one thread of the block that speaks. Release: earlier kernels have put back what they read,
/// and the rank that acquires this may write there again.
DEVICE void say_drained(const Call& call, uint32_t rank) {
  const CallParams& params = call.params;
  const auto received = [&](Kind kind) {
    if (kind == call.kind) return call.before.received;
    return params.workspace->progress[static_cast<uint32_t>(kind)][block::index()].received;
  };
  store<Order::release, Scope::sys>(params.windows.drained(rank, params.rank),
                                    Drained{received(Kind::dispatch), received(Kind::combine)});
}

/// Acquire: what this call writes to `rank` comes after what that rank put back.
DEVICE Drained look_at_drained(const Call& call, uint32_t rank) {
  return load<Order::acquire, Scope::sys>(call.params.windows.drained_here(rank));
}

/// Two buffers: that of the epoch before may still be in use.
DEVICE uint32_t epoch_to_be_drained(const Call& call) {
  return call.epoch() - 2;
}

DEVICE bool has_room(const Call& call, const Drained& drained) {
  return static_cast<int32_t>(drained.of(call.kind) - epoch_to_be_drained(call)) >= 0;
}

/// By one thread.
DEVICE bool await_room(const Call& call, uint32_t rank) {
  const Phase phase = call.kind == Kind::dispatch ? Phase::dispatch_room : Phase::combine_room;
  return call.await(phase, rank, epoch_to_be_drained(call), [&](uint64_t& seen) {
    const Drained drained = look_at_drained(call, rank);
    seen = drained.of(call.kind);
    return has_room(call, drained);
  });
}

/// This thread's place among the block's, counted from the last.
DEVICE uint32_t thread_from_last() {
  return block::threads() - 1 - thread::index();
}

/// What a thread has found of a rank.
struct Look {
  /// As memory has it, so that nothing waits for it here.
  uint32_t failure = static_cast<uint32_t>(Failure::none);
  Drained drained{};  ///< by it, of this rank's

  DEVICE bool masked() const { return failure != static_cast<uint32_t>(Failure::none); }
  /// Of who sends: a rank may be told what shows it that it differs.
  DEVICE bool closed_to_sends(const Call& call) const {
    return masked() && failure != call.differs_since_now();
  }
  DEVICE static Look at(const Call& call, uint32_t rank, bool sending) {
    Look look;
    look.failure = failure_of(call.params, rank);
    if (sending) look.drained = look_at_drained(call, rank);  // This rank's own says nothing.
    return look;
  }
  /// At this thread's first rank, if it has one. Others wait for the answers, so they are asked for
  /// as soon as may be.
  DEVICE static Look first(const Call& call, bool sending) {
    const uint32_t rank = thread_from_last();
    return rank < call.params.ranks ? at(call, rank, sending) : Look{};
  }
};

/// By the block's last `lookers` threads: with whom it speaks, and that it may. Whether there are
/// ranks of this thread's that it does not speak with.
DEVICE bool find_open(const Call& call, const Look& first, bool sending, uint32_t lookers) {
  const CallParams& params = call.params;
  bool closed = false;
  KEEP_ROLLED for (uint32_t rank = thread_from_last(); rank < params.ranks; rank += lookers) {
    const bool other = rank != params.rank;
    const Look look = rank == thread_from_last() ? first : Look::at(call, rank, sending);
    const bool active = params.active.contains(rank);
    if (!active && speaks()) leave_out(call, rank);
    bool open = active && !(sending ? look.closed_to_sends(call) : look.masked());
    if (open && other) {
      // First of all: two ranks that both wait for room here are told by one another.
      if (sends(params.part) && speaks()) say_drained(call, rank);
      if (sending && !has_room(call, look.drained)) open = await_room(call, rank);
    }
    call.shared.open[rank] = open;
    closed |= !open;
  }
  return closed;
}

/// By the whole block, which meets. Whether there are ranks that it does not speak with.
DEVICE bool open_call(const Call& call, const Look& first, bool sending) {
  const CallParams& params = call.params;
  const bool some_closed = block::any(find_open(call, first, sending, block::threads()));
  if (sends(params.part) || !speaks()) return some_closed;
  // Who only receives waits for no room, and its block need not wait for a release.
  KEEP_ROLLED for (uint32_t rank = thread::index(); rank < params.ranks;
                   rank += block::threads()) if (rank != params.rank && call.open(rank))
      say_drained(call, rank);
  return some_closed;
}

/// By the whole block, last of all, and for whoever measures.
DEVICE void close_call(const Call& call) {
  if (call.params.span_ns == nullptr) return;
  block::sync();
  if (thread::index() != 0) return;
  uint64_t* const span = call.params.span_ns + (call.params.part == Part::receive ? 2 : 0);
  // Relaxed: the host reads them after the kernel.
  fetch_min<Order::relaxed, Scope::gpu>(span, call.start_ns);
  fetch_max<Order::relaxed, Scope::gpu>(span + 1, now_ns());
}

}  // namespace tokenyard::low_latency
