/// How a call begins and ends on the device.
///
///     read_epoch .. pass_epoch     each block takes the epoch; the last one advances it
///     say_hello                    block 0 tells every rank which call this is and where its
///                                  buffer lies
///     await_hellos                 every block hears that from every rank, and compares
///     ...                          rows move
///     finish_call                  every block tells every rank that it has done its part; block 0
///                                  stays until every block of every rank has
#pragma once

#include <algorithm>

#include "device/dependent_launch.hpp"
#include "device/device.hpp"
#include "expert_parallel/throughput/call.hpp"
#include "expert_parallel/throughput/crew.hpp"
#include "expert_parallel/throughput/phase.hpp"
#include "expert_parallel/throughput/readiness_kernel.hpp"

namespace tokenyard::throughput {

/// This call's epoch. By any thread, before its block passes it; nothing hangs on the order of the
/// load, since the word changes only once every block has.
DEVICE uint32_t read_epoch(const CallParams& params) {
  return load<Order::relaxed, Scope::gpu>(&params.workspace->epoch) + 1;
}

/// By one thread of each block, all of whose threads have read the epoch. The last one readies the
/// workspace for the next call: acq_rel, so that its stores come after the others' loads.
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

/// By one thread of a block. Relaxed: read by people, long after.
DEVICE void note(const CallParams& params, Moment moment) {
  if (params.moments == nullptr) return;
  uint64_t* const of_block = params.moments + size_t{block::index()} * kMoments;
  store<Order::relaxed, Scope::sys>(of_block + static_cast<uint32_t>(moment), now_ns());
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

/// Of the route that is used again, or 0. It was written by a kernel before this one, and is asked
/// for when the epoch is: who says hello should not have to wait for it.
DEVICE uint32_t read_route_epoch(const CallParams& params) {
  return params.route == nullptr ? 0 : *params.route;
}

/// What this rank says that it calls with.
DEVICE uint32_t hello_value(const CallParams& params, HelloWord word, uint32_t route_epoch) {
  switch (word) {
    case HelloWord::call:
      return call_word(params).bits;
    case HelloWord::route:
      return route_epoch;
    case HelloWord::format:
      return params.format.bits;
    case HelloWord::scales:
      return params.scales.bits;
    case HelloWord::rows:
      return params.rows_at;
    case HelloWord::places:
      return params.places;
    case HelloWord::weights:
      return params.weights_at;
  }
  return 0;
}

/// By one warp of block 0. Release: whatever this rank did to its buffer before, and whatever lies
/// in it to be read, comes before the peers' accesses.
DEVICE void say_hello(const CallParams& params, uint32_t epoch, uint32_t route_epoch) {
  for (uint32_t i = warp::lane(); i < params.ranks * kHelloWords; i += kWarpLanes) {
    const uint32_t rank = i / kHelloWords;
    const auto word = static_cast<HelloWord>(i % kHelloWords);
    store<Order::release, Scope::sys>(params.control.hello(rank, params.rank, word),
                                      Stamped{epoch, hello_value(params, word, route_epoch)});
  }
}

/// By a crew that has met after hear_hellos: refuses the call if another rank has made a different
/// one. That rank finds the same, and so does everybody else, since every rank compares itself with
/// every other. Whether this thread has found nothing to refuse.
DEVICE bool compare_calls(const CallParams& params, const Hellos& hellos, const Deadline& deadline,
                          uint32_t route_epoch, Phase phase, Crew crew) {
  const CallWord mine = call_word(params);
  bool same = true;
  const auto refuse = [&](uint32_t rank, HelloWord word, uint32_t expected) {
    same = false;
    deadline.fail(Failure::refused, Awaited{.phase = static_cast<uint32_t>(phase),
                                            .rank = rank,
                                            .expected = differing(word, expected),
                                            .seen = differing(word, hellos.of(word, rank))});
  };
  for (uint32_t rank = crew.index; rank < params.ranks; rank += crew.size) {
    if (!mine.agrees_with(hellos.call(rank))) {
      refuse(rank, HelloWord::call, mine.bits);
      continue;
    }
    for (const HelloWord word : {HelloWord::route, HelloWord::format, HelloWord::scales})
      if (const uint32_t mine_is = hello_value(params, word, route_epoch);
          hellos.of(word, rank) != mine_is) {
        refuse(rank, word, mine_is);
        break;
      }
  }
  return same;
}

/// By a crew, which then meets: whether all that this thread waited for has come. Acquire: the
/// peers' buffers are free to be written, or hold what is to be read, from here on.
DEVICE bool hear_hellos(const CallParams& params, const Hellos& hellos, const Waits& waits,
                        const Deadline& deadline, uint32_t epoch, Phase phase, Crew crew) {
  const uint64_t begun_ns = block::index() == 0 ? now_ns() : 0;
  bool all_here = true;
  for (uint32_t i = crew.index; i < params.ranks * kHelloWords; i += crew.size) {
    const uint32_t source = i / kHelloWords;
    const auto word = static_cast<HelloWord>(i % kHelloWords);
    Awaited what{.phase = static_cast<uint32_t>(phase), .rank = source, .expected = epoch};
    const bool here = wait_until(deadline, what, [&] {
      const Stamped hello =
          load<Order::acquire, Scope::sys>(params.control.hello(params.rank, source, word));
      hellos.of(word, source) = hello.value;
      what.seen = hello.epoch;
      return hello.epoch == epoch;
    });
    all_here = all_here && here;
    note_wait(waits.hello(source), begun_ns);
  }
  return all_here;
}

/// By the whole block, which meets: false if the call has failed.
DEVICE bool await_hellos(const CallParams& params, const Hellos& hellos, const Waits& waits,
                         const Deadline& deadline, uint32_t epoch, uint32_t route_epoch,
                         Phase phase) {
  const Crew threads = Crew::of_block();
  if (block::any(!hear_hellos(params, hellos, waits, deadline, epoch, phase, threads)))
    return false;
  return !block::any(!compare_calls(params, hellos, deadline, route_epoch, phase, threads));
}

/// By the whole block, after it has met: all its stores are complete and all it needs has been
/// read. Release: that is what the word says. Block 0 then waits for everybody's; acquire, for what
/// runs after this kernel, and for the `watcher` that is told of each.
template <class Watcher>
DEVICE void finish_call(const CallParams& params, const Hellos& hellos, const Waits& waits,
                        const Deadline& deadline, uint32_t epoch, Phase phase,
                        const Watcher& watcher) {
  const Control& control = params.control;
  for (uint32_t rank = thread::index(); rank < params.ranks; rank += block::threads())
    store<Order::release, Scope::sys>(control.finished(rank, params.rank, block::index()), epoch);
  if (thread::index() == 0) note(params, Moment::finished);
  if (block::index() != 0) return;
  const uint64_t begun_ns = now_ns();
  // Asked for while the others finish: nobody else adds to it, and the answer takes a microsecond.
  const uint32_t of_rank = thread::index();
  const size_t total = params.statistics.waited_for(of_rank);
  const uint64_t waited = of_rank < params.ranks ? params.statistics.totals[total] : 0;
  const uint32_t blocks_max = control.layout.blocks_max;
  for (uint32_t i = thread::index(); i < params.ranks * blocks_max; i += block::threads()) {
    const uint32_t source = i / blocks_max, source_block = i % blocks_max;
    if (source_block >= hellos.blocks(source)) continue;
    Awaited what{.phase = static_cast<uint32_t>(phase), .rank = source, .expected = epoch};
    const bool finished = wait_until(deadline, what, [&] {
      const uint32_t seen =
          load<Order::acquire, Scope::sys>(control.finished(params.rank, source, source_block));
      what.seen = seen;
      // A peer that has seen us finish may be a call ahead.
      return static_cast<int32_t>(seen - epoch) >= 0;
    });
    if (finished) watcher.block_finished(source, hellos.blocks(source));
    note_wait(waits.finish(source), begun_ns);
  }
  watcher.all_finished();
  block::sync();
  const auto waited_for = [&](uint32_t rank) {
    return uint64_t{waits.hello(rank)} + waits.finish(rank);
  };
  if (of_rank < params.ranks) set_total(params.statistics, total, waited + waited_for(of_rank));
  for (uint32_t rank = of_rank + block::threads(); rank < params.ranks; rank += block::threads())
    count_up(params.statistics, params.statistics.waited_for(rank), waited_for(rank));
  if (thread::index() == 0) note(params, Moment::ended);
}

}  // namespace tokenyard::throughput
