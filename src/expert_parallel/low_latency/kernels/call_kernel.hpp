/// How a low-latency kernel begins, and which ranks it communicates with.
///
///     begin_call      every thread loads its block's epoch word
///     open_call       one block publishes to the active ranks which of this rank's buffers it has
///                     drained; a sending block waits until its destinations have drained theirs
///     advance_epoch   advances the epoch words, once the block has synchronized
///     close_call      records times for measurements
///
/// `drained` of a rank proves that it has read and emptied its buffers up to that epoch
/// (protocol.hpp, 3). One load takes about as long as ten, and delays all that depends on it: loads
/// are issued together and never depend on one another. A role issues loads that need no open ranks
/// between begin_call and open_call.
#pragma once

#include <bit>

#include "device/dependent_launch.hpp"
#include "expert_parallel/low_latency/kernels/liveness_kernel.hpp"

namespace tokenyard::low_latency {

using tokenyard::settled;

/// Keeps an address in registers: the compiler would recompute it where it can, and after a wait
/// every instruction adds to latency.
template <class T>
TOKENYARD_DEVICE Peer<T> settled(Peer<T> place) {
  return Peer<T>(settled(place.address()));
}

/// Begins a call. Consecutive calls overlap: the next call's blocks are resident when this one
/// ends, unless the call must leave multiprocessors to other kernels. Before this returns, a block
/// may use only the launch parameters: earlier kernels may still be writing memory.
TOKENYARD_DEVICE Call begin_call(const CallParams& params, uint32_t* open_ranks, Kind kind) {
  grid::wait_for_previous();
  const uint64_t start_ns = now_ns();
  // No other thread writes this block's word while the kernel runs. It is nevertheless a relaxed
  // load, from an address that depends on the thread: the compiler would keep a block-uniform value
  // elsewhere and wait for it before the kernel goes on.
  const uint32_t block = block::index() + (thread::index() < block::threads() ? 0 : 1);
  const auto before = load<Order::relaxed, Scope::gpu>(
      &params.workspace->progress[static_cast<uint32_t>(kind)][block]);
  if (params.whole_gpu && warp::index() == 0) grid::let_next_start();
  return {.params = params,
          .open_ranks = open_ranks,
          .kind = kind,
          .before = before,
          .start_ns = start_ns};
}

/// Advances the epoch words. Called once by the whole block, after it has synchronized since its
/// threads loaded their word, and where no rank waits for the block: last in a sending block,
/// before its waits in a receiving one.
TOKENYARD_DEVICE void advance_epoch(const Call& call) {
  const CallParams& params = call.params;
  const Progress now{.sent = sends(params.part) ? call.epoch() : call.before.sent,
                     .received = receives(params.part) ? call.epoch() : call.before.received};
  Progress* const words = params.workspace->progress[static_cast<uint32_t>(call.kind)];
  TOKENYARD_KEEP_ROLLED for (uint32_t i = block::index() + thread::index() * grid::blocks();
                             i < kBlocksMax; i += block::threads() * grid::blocks()) words[i] = now;
}

/// Masks a rank that the caller leaves out, as if it had not answered: what it may send is not
/// received. Called by one thread.
TOKENYARD_DEVICE void leave_out(const Call& call, uint32_t rank) {
  const WaitContext wait_context = call.params.masks.wait_context(rank);
  Deadline(wait_context, call.start_ns)
      .fail(Failure::refused,
            Awaited{.phase = static_cast<uint32_t>(Phase::left_out), .rank = rank});
}

/// Publishes a weight. Called by one thread. Relaxed: the word carries its batch's stamp and
/// releases no other data.
TOKENYARD_DEVICE void publish_weight(Peer<Stamped> to, uint32_t stamp, float weight) {
  store<Order::relaxed, Scope::sys>(to, Stamped{stamp, std::bit_cast<uint32_t>(weight)});
}

/// Returns whether this block publishes the rank's `drained` words: the last block, which has no
/// tokens in small calls, since a release to peers takes more than a microsecond. A grid has at
/// most one block per multiprocessor, so waiting blocks of its own rank never keep this one from
/// running.
TOKENYARD_DEVICE bool speaks() {
  return block::index() == grid::blocks() - 1;
}

/// Publishes the epochs up to which this rank's buffers are drained. Called by one thread of the
/// block that speaks for the rank. Release: orders the stores by which earlier kernels emptied what
/// they read before the word; a rank that acquires it may write there again.
TOKENYARD_DEVICE void say_drained(const Call& call, uint32_t rank) {
  const CallParams& params = call.params;
  const auto received = [&](Kind kind) {
    if (kind == call.kind) return call.before.received;
    return params.workspace->progress[static_cast<uint32_t>(kind)][block::index()].received;
  };
  store<Order::release, Scope::sys>(params.windows.drained(rank, params.rank),
                                    Drained{received(Kind::dispatch), received(Kind::combine)});
}

/// Acquire: orders that rank's emptying stores before what this call writes there.
TOKENYARD_DEVICE Drained look_at_drained(const Call& call, uint32_t rank) {
  return load<Order::acquire, Scope::sys>(call.params.windows.drained_here(rank));
}

/// Two buffers: that of the previous epoch may still be in use.
TOKENYARD_DEVICE uint32_t epoch_to_be_drained(const Call& call) {
  return call.epoch() - 2;
}

TOKENYARD_DEVICE bool has_room(const Call& call, const Drained& drained) {
  return static_cast<int32_t>(drained.of(call.kind) - epoch_to_be_drained(call)) >= 0;
}

/// Waits until `rank` has drained the buffer that this call writes. Called by one thread.
TOKENYARD_DEVICE bool await_room(const Call& call, uint32_t rank) {
  const Phase phase = call.kind == Kind::dispatch ? Phase::dispatch_room : Phase::combine_room;
  return call.await(phase, rank, epoch_to_be_drained(call), [&](uint64_t& seen) {
    const Drained drained = look_at_drained(call, rank);
    seen = drained.of(call.kind);
    return has_room(call, drained);
  });
}

/// Returns this thread's index in the block, counted from the last thread.
TOKENYARD_DEVICE uint32_t thread_from_last() {
  return block::threads() - 1 - thread::index();
}

/// The state of a rank as one thread sees it.
struct Look {
  /// As loaded, so that nothing waits for it here.
  uint32_t failure = static_cast<uint32_t>(Failure::none);
  Drained drained{};  ///< published by that rank about its own buffers

  TOKENYARD_DEVICE bool masked() const { return failure != static_cast<uint32_t>(Failure::none); }
  /// Returns whether nothing may be sent to the rank. A rank masked in this very call for a
  /// difference still receives, so that it detects the difference too.
  TOKENYARD_DEVICE bool closed_to_sends(const Call& call) const {
    return masked() && failure != call.differs_since_now();
  }
  TOKENYARD_DEVICE static Look at(const Call& call, uint32_t rank, bool sending) {
    Look look;
    look.failure = failure_of(call.params, rank);
    if (sending) look.drained = look_at_drained(call, rank);  // Meaningless for this rank itself.
    return look;
  }
  /// Returns the state of this thread's first rank, if it has one. Called as early as possible:
  /// other threads wait for the answers.
  TOKENYARD_DEVICE static Look first(const Call& call, bool sending) {
    const uint32_t rank = thread_from_last();
    return rank < call.params.ranks ? at(call, rank, sending) : Look{};
  }
};

/// Finds the open ranks, waiting for room where the block sends. Called by the block's last
/// `lookers` threads. Returns whether some of this thread's ranks are not open.
TOKENYARD_DEVICE bool find_open(const Call& call, const Look& first, bool sending,
                                uint32_t lookers) {
  const CallParams& params = call.params;
  bool closed = false;
  TOKENYARD_KEEP_ROLLED for (uint32_t rank = thread_from_last(); rank < params.ranks;
                             rank += lookers) {
    const bool other = rank != params.rank;
    const Look look = rank == thread_from_last() ? first : Look::at(call, rank, sending);
    const bool active = !params.leaves_out(rank);
    if (!active && speaks()) leave_out(call, rank);
    bool open = active && !(sending ? look.closed_to_sends(call) : look.masked());
    if (open && other) {
      // Before any wait: two ranks that wait for each other's buffers are released by this.
      if (sends(params.part) && speaks()) say_drained(call, rank);
      if (sending && !has_room(call, look.drained)) open = await_room(call, rank);
    }
    call.open_ranks[rank] = open;
    closed |= !open;
  }
  return closed;
}

/// Finds the open ranks. Called by the whole block, which synchronizes. Returns whether some ranks
/// are not open.
TOKENYARD_DEVICE bool open_call(const Call& call, const Look& first, bool sending) {
  const CallParams& params = call.params;
  const bool some_closed = block::any(find_open(call, first, sending, block::threads()));
  if (sends(params.part) || !speaks()) return some_closed;
  // A block that only receives waits for no room and need not wait for a release.
  TOKENYARD_KEEP_ROLLED for (uint32_t rank = thread::index(); rank < params.ranks;
                             rank += block::threads()) if (rank != params.rank && call.open(rank))
      say_drained(call, rank);
  return some_closed;
}

/// Records the call's times for measurements. Called last, by the whole block.
TOKENYARD_DEVICE void close_call(const Call& call) {
  if (call.params.span_ns == nullptr) return;
  block::sync();
  if (thread::index() != 0) return;
  uint64_t* const span = call.params.span_ns + (call.params.part == Part::receive ? 2 : 0);
  // Relaxed: the host reads them after the kernel.
  fetch_min<Order::relaxed, Scope::gpu>(span, call.start_ns);
  fetch_max<Order::relaxed, Scope::gpu>(span + 1, now_ns());
}

}  // namespace tokenyard::low_latency
