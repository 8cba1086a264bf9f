/// How a low-latency kernel begins, and with whom it speaks.
///
///     read_epoch .. pass_epoch    every thread takes the epoch; the last block advances it
///     say_drained                 block 0 tells the active ranks which buffers are free again
///     await_room                  a sending block waits until its destinations' buffers are
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
/// come after the others' loads.
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

/// By one thread of block 0, which has read the epoch. Release: earlier kernels have put back what
/// they read, and the rank that acquires this may write there again.
DEVICE void say_drained(const Call& call, uint32_t rank) {
  const CallParams& params = call.params;
  const auto received = [&](Kind kind) {
    return load<Order::relaxed, Scope::gpu>(
        &params.workspace->progress[static_cast<uint32_t>(kind)].received);
  };
  store<Order::release, Scope::sys>(params.windows.drained(rank, params.rank),
                                    Drained{received(Kind::dispatch), received(Kind::combine)});
}

/// By one thread. Acquire: what this call writes to `rank` comes after what that rank put back.
DEVICE bool await_room(const Call& call, uint32_t rank) {
  const uint32_t drained_by_now = call.epoch - 2;  // Two buffers: the one before is still in use.
  const Phase phase = call.kind == Kind::dispatch ? Phase::dispatch_room : Phase::combine_room;
  return call.await(phase, rank, drained_by_now, [&](uint64_t& seen) {
    const Drained drained =
        load<Order::acquire, Scope::sys>(call.params.windows.drained(call.params.rank, rank));
    seen = drained.of(call.kind);
    return static_cast<int32_t>(drained.of(call.kind) - drained_by_now) >= 0;
  });
}

/// By the whole block, which meets: with whom it speaks, and that it may.
DEVICE void open_call(const Call& call, bool sending) {
  const CallParams& params = call.params;
  for (uint32_t rank = thread::index(); rank < params.ranks; rank += block::threads()) {
    const bool active = params.active.contains(rank);
    if (!active && block::index() == 0) leave_out(call, rank);
    bool open = active && !call.masked(rank);
    if (open && rank != params.rank) {
      if (block::index() == 0) say_drained(call, rank);
      if (sending) open = await_room(call, rank);
    }
    call.shared.open[rank] = open;
  }
  block::sync();
  // After block 0 has told what the words held before this kernel.
  if (thread::index() == 0) pass_epoch(call);
}

}  // namespace tokenyard::low_latency
