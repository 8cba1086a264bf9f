/// How a call begins and ends on the device.
///
///     begin_call .. pass_epoch     each block takes the epoch; the last one advances it
///     set_ready                    block 0 tells every rank which call this is and where its
///                                  buffer lies
///     await_ready_words                 every block hears that from every rank, and compares
///     ...                          rows move
///     say_finished                 every block tells every rank that it has done its part
///     await_finished               block 0 stays until every block of every rank has
///
/// A small call is a chain of round trips, so what need not be in that chain is beside it: a block
/// asks for all that it must know in one place and at once, hellos are released before the epoch is
/// known, and what nobody awaits is told once everybody has been told that the block has finished.
#pragma once

#include <algorithm>

#include "device/apart.hpp"
#include "device/dependent_launch.hpp"
#include "device/device.hpp"
#include "expert_parallel/throughput/kernels/call.hpp"
#include "expert_parallel/throughput/kernels/phase.hpp"
#include "expert_parallel/throughput/kernels/readiness_kernel.hpp"
#include "expert_parallel/throughput/kernels/thread_group.hpp"

namespace tokenyard::throughput {

/// By one thread of a block.
DEVICE void note(const CallParams& params, CallShared& shared, Moment moment) {
  if (params.moments != nullptr) shared.moments[static_cast<uint32_t>(moment)] = now_ns();
}

/// By one thread of a block, after all others have noted what they had to. Relaxed: read by people,
/// long after. Kept in shared memory until now, for a release would have to wait for each.
DEVICE void show_moments(const CallParams& params, const CallShared& shared) {
  if (params.moments == nullptr) return;
  uint64_t* const of_block = params.moments + size_t{block::index()} * kMoments;
  for (uint32_t moment = 0; moment < kMoments; ++moment)
    if (shared.moments[moment] != 0)
      store<Order::relaxed, Scope::sys>(of_block + moment, shared.moments[moment]);
}

/// The warp that tells the other ranks of the call.
DEVICE bool sets_ready() {
  return block::index() == 0 && warp::index() == 0;
}

/// By one thread of each block: what the block must know of the call. Relaxed: the epoch changes
/// only once every block has passed it; the route was written by a kernel before this one.
DEVICE void look_at_call(const CallParams& params, CallShared& shared,
                         const CallDeadline& deadline) {
  const uint32_t epoch = load<Order::relaxed, Scope::gpu>(&params.workspace->epoch);
  shared.route_epoch = params.route == nullptr ? 0 : *params.route;
  shared.failed = deadline.failed();
  shared.epoch = epoch + 1;
}

/// By the whole block, which meets: false if a call before this one has failed. The warp that will
/// say hello releases by a fence, while the others look and go on, whatever this rank did to its
/// buffer before the call, and whatever lies in it to be read: a release together with the words,
/// once they are known, would hold them up by a microsecond.
DEVICE bool begin_call(const CallParams& params, CallShared& shared, const CallDeadline& deadline) {
  if (thread::index() == 0 && params.moments != nullptr) {
    for (uint64_t& moment : shared.moments) moment = 0;
    note(params, shared, Moment::begun);
  }
  if (thread::index() + 1 == block::threads()) look_at_call(params, shared, deadline);
  const NamedBarrier ready(CallBarrier::ready), known(CallBarrier::known);
  if (block::index() != 0) {
    block::sync();
  } else if (sets_ready()) {
    ready.arrive(block::threads());
    fence<Scope::sys>();
    known.sync(block::threads());
  } else {
    known.arrive(block::threads());
    ready.sync(block::threads());
  }
  return !shared.failed;
}

/// By one thread of each block, which has begun. The last one readies the workspace for the next
/// call: acq_rel, so that its stores come after the others' loads.
DEVICE void pass_epoch(const CallParams& params, uint32_t epoch) {
  Workspace& workspace = *params.workspace;
  const uint32_t before = fetch_add<Order::acq_rel, Scope::gpu>(&workspace.readers, 1);
  if (before + 1 != grid::blocks()) return;
  const uint32_t next = (epoch + 1) & 1;
  store<Order::relaxed, Scope::gpu>(&workspace.claims[next], 0);
  store<Order::relaxed, Scope::gpu>(&workspace.routes_known[next], 0);
  store<Order::relaxed, Scope::gpu>(&workspace.spreads[next], 0);
  store<Order::relaxed, Scope::gpu>(&workspace.placed[next], 0);
  store<Order::relaxed, Scope::gpu>(&workspace.readers, 0);
  store<Order::relaxed, Scope::gpu>(&workspace.epoch, epoch);
}

/// By one thread of the grid at a time for each total.
DEVICE void set_total(const Statistics& statistics, size_t which, uint64_t total) {
  statistics.totals[which] = total;
  store<Order::relaxed, Scope::sys>(statistics.shown + which, total);
}
DEVICE void count_up(const Statistics& statistics, size_t which, uint64_t value) {
  set_total(statistics, which, statistics.totals[which] + value);
}

/// Of block 0: notes how long a thread has waited for a rank; the longest counts.
DEVICE void note_wait(uint32_t& longest, uint64_t begun_ns) {
  if (block::index() != 0) return;
  const uint64_t ns = std::min<uint64_t>(now_ns() - begun_ns, 0xffffffff);
  fetch_max<Order::relaxed, Scope::block>(&longest, static_cast<uint32_t>(ns));
}

DEVICE CallWord call_word(const CallParams& params) {
  return CallWord::of(params.kind, params.weights, params.comes_later, grid::blocks());
}

/// What this rank says that it calls with.
DEVICE uint32_t ready_value(const CallParams& params, ReadyWord word, uint32_t route_epoch) {
  switch (word) {
    case ReadyWord::call:
      return call_word(params).bits;
    case ReadyWord::route:
      return route_epoch;
    case ReadyWord::format:
      return params.format.bits;
    case ReadyWord::scales:
      return params.scales.bits;
    case ReadyWord::rows:
      return params.rows_at;
    case ReadyWord::places:
      return params.places;
    case ReadyWord::beside:
      return params.beside_at;
  }
  return 0;
}

/// By the warp that says hello. Relaxed: begin_call has released all that they tell of.
DEVICE void set_ready(const CallParams& params, uint32_t epoch, uint32_t route_epoch) {
  for (uint32_t i = warp::lane(); i < params.ranks * kReadyWords; i += kWarpLanes) {
    const uint32_t rank = i / kReadyWords;
    const auto word = static_cast<ReadyWord>(i % kReadyWords);
    store<Order::relaxed, Scope::sys>(params.control.ready_word(rank, params.rank, word),
                                      Stamped{epoch, ready_value(params, word, route_epoch)});
  }
}

/// The first word in which a rank's rows or scales are others than rank 0's; ReadyWord::call where
/// they are the same.
DEVICE ReadyWord differing_word(const ReadyWords& ready_words, uint32_t rank) {
  if (ready_words.of(ReadyWord::format, rank) != ready_words.of(ReadyWord::format, 0))
    return ReadyWord::format;
  if (ready_words.of(ReadyWord::scales, rank) != ready_words.of(ReadyWord::scales, 0))
    return ReadyWord::scales;
  return ReadyWord::call;
}

/// By a crew that has met after read_ready_words: refuses the call if another rank has made a
/// different one. That rank finds the same, and so does everybody else, since every rank compares
/// itself with every other. `differs(rank)` is told of each rank whose rows or scales are others
/// than rank 0's, and may take it upon itself to refuse the call. Whether the call has not failed,
/// as far as this thread knows.
template <class Differs>
DEVICE bool compare_calls(const CallParams& params, const ReadyWords& ready_words,
                          const CallDeadline& deadline, uint32_t route_epoch, Phase phase,
                          ThreadGroup thread_group, Differs differs) {
  const CallWord mine = call_word(params);
  bool same = true;
  const auto refuse = [&](uint32_t rank, ReadyWord word, uint32_t expected) {
    same = false;
    deadline.fail(Failure::refused, Awaited{.phase = static_cast<uint32_t>(phase),
                                            .rank = rank,
                                            .expected = differing(word, expected),
                                            .seen = differing(word, ready_words.of(word, rank))});
  };
  for (uint32_t rank = thread_group.index; rank < params.ranks; rank += thread_group.size) {
    if (!mine.agrees_with(ready_words.call(rank))) {
      refuse(rank, ReadyWord::call, mine.bits);
    } else if (ready_words.of(ReadyWord::route, rank) != route_epoch) {
      refuse(rank, ReadyWord::route, route_epoch);
    } else if (const ReadyWord word = differing_word(ready_words, rank); word != ReadyWord::call) {
      if (!differs(rank)) refuse(rank, word, ready_words.of(word, 0));
    }
  }
  return same;
}

/// By a crew, which then meets: whether all that this thread waited for has come. Acquire: the
/// peers' buffers are free to be written, or hold what is to be read, from here on.
DEVICE bool read_ready_words(const CallParams& params, const ReadyWords& ready_words,
                             const Waits& waits, const CallDeadline& deadline, uint32_t epoch,
                             Phase phase, ThreadGroup thread_group) {
  const uint64_t begun_ns = block::index() == 0 ? now_ns() : 0;
  bool all_here = true;
  for (uint32_t i = thread_group.index; i < params.ranks * kReadyWords; i += thread_group.size) {
    const uint32_t source = i / kReadyWords;
    const auto word = static_cast<ReadyWord>(i % kReadyWords);
    Awaited what{.phase = static_cast<uint32_t>(phase), .rank = source, .expected = epoch};
    const bool here = wait_until(deadline, what, [&] {
      const Stamped ready_word =
          load<Order::acquire, Scope::sys>(params.control.ready_word(params.rank, source, word));
      ready_words.of(word, source) = ready_word.value;
      what.seen = ready_word.epoch;
      return ready_word.epoch == epoch;
    });
    all_here = all_here && here;
    note_wait(waits.ready_word(source), begun_ns);
  }
  return all_here;
}

/// By the whole block, which meets: false if the call has failed.
DEVICE bool await_ready_words(const CallParams& params, const ReadyWords& ready_words,
                              const Waits& waits, const CallDeadline& deadline, uint32_t epoch,
                              uint32_t route_epoch, Phase phase) {
  const ThreadGroup threads = ThreadGroup::of_block();
  if (block::any(!read_ready_words(params, ready_words, waits, deadline, epoch, phase, threads)))
    return false;
  // Nobody counts in this call, so nothing but a failure can tell of rows that differ.
  return !block::any(!compare_calls(params, ready_words, deadline, route_epoch, phase, threads,
                                    [](uint32_t) { return false; }));
}

/// By some threads of a block, which know that all that it stores for other ranks is complete and
/// all that it needs of theirs has been read. Release: that is what the word says.
DEVICE void say_finished(const CallParams& params, CallShared& shared, ThreadGroup thread_group) {
  for (uint32_t rank = thread_group.index; rank < params.ranks; rank += thread_group.size)
    store<Order::release, Scope::sys>(params.control.finished(rank, params.rank, block::index()),
                                      shared.epoch);
  if (thread_group.index == 0) note(params, shared, Moment::finished);
}

/// By the whole of block 0: waits until every block of every rank has said that it has finished.
/// Acquire: for what runs after this kernel, and for the `watcher` that is told of each.
template <class Watcher>
DEVICE void await_finished(const CallParams& params, const ReadyWords& ready_words,
                           const Waits& waits, const CallDeadline& deadline, uint32_t epoch,
                           Phase phase, const Watcher& watcher) {
  const Control& control = params.control;
  const uint64_t begun_ns = now_ns();
  // Asked for while the others finish: nobody else adds to it, and the answer takes a microsecond.
  const uint32_t of_rank = thread::index();
  const size_t total = params.statistics.waited_for(of_rank);
  const uint64_t waited = of_rank < params.ranks ? params.statistics.totals[total] : 0;
  const uint32_t blocks_max = control.layout.blocks_max;
  for (uint32_t i = thread::index(); i < params.ranks * blocks_max; i += block::threads()) {
    const uint32_t source = i / blocks_max, source_block = i % blocks_max;
    if (source_block >= ready_words.blocks(source)) continue;
    Awaited what{.phase = static_cast<uint32_t>(phase), .rank = source, .expected = epoch};
    const bool finished = wait_until(deadline, what, [&] {
      const uint32_t seen =
          load<Order::acquire, Scope::sys>(control.finished(params.rank, source, source_block));
      what.seen = seen;
      // A peer that has seen us finish may be a call ahead.
      return static_cast<int32_t>(seen - epoch) >= 0;
    });
    if (finished) watcher.block_finished(source, ready_words.blocks(source));
    note_wait(waits.finish(source), begun_ns);
  }
  watcher.all_finished();
  block::sync();
  const auto waited_for = [&](uint32_t rank) {
    return uint64_t{waits.ready_word(rank)} + waits.finish(rank);
  };
  if (of_rank < params.ranks) set_total(params.statistics, total, waited + waited_for(of_rank));
  for (uint32_t rank = of_rank + block::threads(); rank < params.ranks; rank += block::threads())
    count_up(params.statistics, params.statistics.waited_for(rank), waited_for(rank));
}

/// By the whole block, which has met since it has said that it has finished, or is about to: ends
/// the call.
template <class Watcher>
DEVICE void end_call(const CallParams& params, CallShared& shared, const ReadyWords& ready_words,
                     const Waits& waits, const CallDeadline& deadline, Phase phase,
                     const Watcher& watcher) {
  if (block::index() == 0) {
    await_finished(params, ready_words, waits, deadline, shared.epoch, phase, watcher);
    if (thread::index() == 0) note(params, shared, Moment::ended);
  }
  if (thread::index() == 0) show_moments(params, shared);
}

}  // namespace tokenyard::throughput
