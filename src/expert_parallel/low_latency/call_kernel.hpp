/// How a low-latency kernel begins, and with whom it speaks.
///
///     read_epoch .. pass_epoch    every thread takes the epoch; the last block advances it
///     say_drained                 one block tells the active ranks which buffers are free again
///     await_room                  a sending block waits until its destinations' buffers are
///
/// A look at memory takes about as long as ten of them do, and what a call may not do before them
/// it does that much later: looks are made together, and none that needs another's answer.
#pragma once

#include "expert_parallel/low_latency/vigil_kernel.hpp"

namespace tokenyard::low_latency {

/// This kernel's epoch. Nothing hangs on the order of the load: the word changes only once every
/// block has read it.
DEVICE uint32_t read_epoch(const CallParams& params, Kind kind) {
  const Workspace::Progress& progress = params.workspace->progress[static_cast<uint32_t>(kind)];
  const uint32_t* const last = sends(params.part) ? &progress.sent : &progress.received;
  return load<Order::relaxed, Scope::gpu>(last) + 1;
}

/// By one thread a block, all of whose threads have read the epoch. acq_rel: the last one's stores
/// come after the others' loads. It takes as long as a microsecond, so it is nobody's who has data
/// to move.
DEVICE void pass_epoch(const Call& call) {
  Workspace::Progress& progress = call.params.workspace->progress[static_cast<uint32_t>(call.kind)];
  const uint32_t before = fetch_add<Order::acq_rel, Scope::gpu>(&progress.readers, 1);
  if (before + 1 != grid::blocks()) return;
  store<Order::relaxed, Scope::gpu>(&progress.readers, 0);
  if (sends(call.params.part)) store<Order::relaxed, Scope::gpu>(&progress.sent, call.epoch);
  if (receives(call.params.part)) store<Order::relaxed, Scope::gpu>(&progress.received, call.epoch);
}

/// By one thread: a rank that the caller leaves out is masked as if it had not answered, since what
/// it may send meanwhile is not received.
DEVICE void leave_out(const Call& call, uint32_t rank) {
  const Patience patience = call.params.masks.patience(rank);
  Deadline(patience, call.start_ns)
      .fail(Failure::refused,
            Awaited{.phase = static_cast<uint32_t>(Phase::left_out), .rank = rank});
}

/// The block that speaks for the rank. A receiving one where there is: it has time while rows
/// travel, and waits for no room. A kernel that does both never needs to be told first what its
/// peers tell in the same call, so it does not matter when that block begins.
DEVICE bool speaks(const CallParams& params) {
  return block::index() == (params.part == Part::both ? params.send_blocks : 0);
}

/// By one thread of the block that speaks, which has read the epoch. Release: earlier kernels have
/// put back what they read, and the rank that acquires this may write there again.
DEVICE void say_drained(const Call& call, uint32_t rank) {
  const CallParams& params = call.params;
  const auto received = [&](Kind kind) {
    return load<Order::relaxed, Scope::gpu>(
        &params.workspace->progress[static_cast<uint32_t>(kind)].received);
  };
  store<Order::release, Scope::sys>(params.windows.drained(rank, params.rank),
                                    Drained{received(Kind::dispatch), received(Kind::combine)});
}

/// Acquire: what this call writes to `rank` comes after what that rank put back.
DEVICE Drained look_at_drained(const Call& call, uint32_t rank) {
  return load<Order::acquire, Scope::sys>(call.params.windows.drained(call.params.rank, rank));
}

/// Two buffers: that of the epoch before may still be in use.
DEVICE uint32_t epoch_to_be_drained(const Call& call) {
  return call.epoch - 2;
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

/// By the whole block, which meets: with whom it speaks, and that it may.
DEVICE void open_call(const Call& call, bool sending) {
  const CallParams& params = call.params;
  for (uint32_t rank = thread::index(); rank < params.ranks; rank += block::threads()) {
    const bool other = rank != params.rank;
    const bool masked = call.masked(rank);
    const Drained drained = sending && other ? look_at_drained(call, rank) : Drained{};
    const bool active = params.active.contains(rank);
    if (!active && speaks(params)) leave_out(call, rank);
    bool open = active && !masked;
    if (open && other) {
      // First of all: two ranks that both wait for room here are told by one another.
      if (speaks(params)) say_drained(call, rank);
      if (sending && !has_room(call, drained)) open = await_room(call, rank);
    }
    call.shared.open[rank] = open;
  }
  block::sync();
  // After the block that speaks has told what the words held before this kernel.
  if (thread::index() == block::threads() - 1) pass_epoch(call);
}

/// By the whole block, last of all: for whoever measures.
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
