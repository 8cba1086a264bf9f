/// How a call begins and ends on the device.
///
///     begin_call .. pass_epoch     each block reads the epoch; the last one advances it
///     set_ready                    block 0 publishes its call and the address of its buffer to
///                                  every rank
///     await_ready_words            every block waits for that from every rank, and compares
///     ...                          rows move
///     say_finished                 every block signals every rank that it has done its part
///     await_finished               block 0 waits until every block of every rank has done so
///
/// The epoch in a ready word proves that its source entered this call after it ended the previous
/// one, so its buffer is free to be written, or ready to be read. A small call is a chain of round
/// trips, so all else stays off that chain: a block issues the loads of all that it needs to know
/// together, the fence that releases the ready words precedes the epoch's arrival, and stores that
/// nobody awaits follow the finished words.
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

/// Called by one thread of a block.
TOKENYARD_DEVICE void note(const CallParams& params, CallShared& shared, Moment moment) {
  if (params.moments != nullptr) shared.moments[static_cast<uint32_t>(moment)] = now_ns();
}

/// Publishes the block's moments. Called by one thread, after the others have noted theirs.
/// Relaxed: people read them much later. They stay in shared memory until now because a release
/// would have to wait for each store.
TOKENYARD_DEVICE void show_moments(const CallParams& params, const CallShared& shared) {
  if (params.moments == nullptr) return;
  uint64_t* const of_block = params.moments + size_t{block::index()} * kMoments;
  for (uint32_t moment = 0; moment < kMoments; ++moment)
    if (shared.moments[moment] != 0)
      store<Order::relaxed, Scope::sys>(of_block + moment, shared.moments[moment]);
}

/// Returns whether this warp publishes the rank's ready words.
TOKENYARD_DEVICE bool sets_ready() {
  return block::index() == 0 && warp::index() == 0;
}

/// Reads what the block must know about the call. Called by one thread per block. Relaxed: the
/// epoch changes only after every block has called pass_epoch; an earlier kernel wrote the route.
TOKENYARD_DEVICE void look_at_call(const CallParams& params, CallShared& shared,
                                   const CallDeadline& deadline) {
  const uint32_t epoch = load<Order::relaxed, Scope::gpu>(&params.workspace->epoch);
  shared.route_epoch = params.route == nullptr ? 0 : *params.route;
  shared.failed = deadline.failed();
  shared.epoch = epoch_after(epoch);
}

/// Begins the call; returns false if an earlier call has failed. Called by the whole block, which
/// synchronizes. While the other warps read and go on, the publishing warp's fence releases all
/// that this rank did before the call to its buffer, and the data there to be read, before its
/// ready words. Releasing with the words, once their values are known, would delay them by a
/// microsecond.
TOKENYARD_DEVICE bool begin_call(const CallParams& params, CallShared& shared,
                                 const CallDeadline& deadline) {
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

/// Counts a block as past the epoch; the last block prepares the workspace for the next call.
/// Called by one thread per block after begin_call. acq_rel: orders the last block's stores after
/// every block's load of the epoch.
TOKENYARD_DEVICE void pass_epoch(const CallParams& params, uint32_t epoch) {
  Workspace& workspace = *params.workspace;
  const uint32_t before = fetch_add<Order::acq_rel, Scope::gpu>(&workspace.readers, 1);
  if (before + 1 != grid::blocks()) return;
  const uint32_t next = epoch_after(epoch) & 1;
  store<Order::relaxed, Scope::gpu>(&workspace.claims[next], 0);
  store<Order::relaxed, Scope::gpu>(&workspace.routes_known[next], 0);
  store<Order::relaxed, Scope::gpu>(&workspace.spreads[next], 0);
  store<Order::relaxed, Scope::gpu>(&workspace.placed[next], 0);
  store<Order::relaxed, Scope::gpu>(&workspace.readers, 0);
  store<Order::relaxed, Scope::gpu>(&workspace.epoch, epoch);
}

/// Called by at most one thread of the grid at a time per total.
TOKENYARD_DEVICE void set_total(const Statistics& statistics, size_t which, uint64_t total) {
  statistics.totals[which] = total;
  store<Order::relaxed, Scope::sys>(statistics.shown + which, total);
}
TOKENYARD_DEVICE void count_up(const Statistics& statistics, size_t which, uint64_t value) {
  set_total(statistics, which, statistics.totals[which] + value);
}

/// Records in block 0 how long a thread has waited for a rank; keeps the maximum.
TOKENYARD_DEVICE void note_wait(uint32_t& longest, uint64_t begun_ns) {
  if (block::index() != 0) return;
  const uint64_t ns = now_ns() - begun_ns + kWaitUnitNs - 1;
  const uint64_t units = std::min<uint64_t>(ns / kWaitUnitNs, 0xffffffff);
  fetch_max<Order::relaxed, Scope::block>(&longest, static_cast<uint32_t>(units));
}

TOKENYARD_DEVICE CallWord call_word(const CallParams& params) {
  return CallWord::of(params.kind, params.weights, params.comes_later, grid::blocks());
}

/// Returns the value of a ready word of this rank.
TOKENYARD_DEVICE uint32_t ready_value(const CallParams& params, ReadyWord word,
                                      uint32_t route_epoch) {
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

/// Publishes this rank's ready words to every rank. Called by the publishing warp. Relaxed: the
/// fence in begin_call has released all that they announce.
TOKENYARD_DEVICE void set_ready(const CallParams& params, uint32_t epoch, uint32_t route_epoch) {
  for (uint32_t i = warp::lane(); i < params.ranks * kReadyWords; i += kWarpLanes) {
    const uint32_t rank = i / kReadyWords;
    const auto word = static_cast<ReadyWord>(i % kReadyWords);
    if (params.absent.contains(rank) && !mutated()) continue;
    store<Order::relaxed, Scope::sys>(params.control.ready_word(rank, params.rank, word),
                                      Stamped{epoch, ready_value(params, word, route_epoch)});
  }
}

/// Returns the first word in which a rank's rows or scales differ from those of `first`, the first
/// present rank; ReadyWord::call if none does.
TOKENYARD_DEVICE ReadyWord differing_word(const ReadyWords& ready_words, uint32_t first,
                                          uint32_t rank) {
  if (ready_words.of(ReadyWord::format, rank) != ready_words.of(ReadyWord::format, first))
    return ReadyWord::format;
  if (ready_words.of(ReadyWord::scales, rank) != ready_words.of(ReadyWord::scales, first))
    return ReadyWord::scales;
  return ReadyWord::call;
}

/// How a rank's call differs from the agreed one.
struct CallDifference {
  bool there_is = false;
  ReadyWord word = ReadyWord::call;
  uint32_t than = 0;  ///< rank that it differs from

  TOKENYARD_DEVICE bool of_rows() const {
    return word == ReadyWord::format || word == ReadyWord::scales;
  }
};

/// Returns the first rank that makes a call of the kind of `first` and knows whether it has
/// weights; `first` if none does. No kind is that of an absent rank's word.
TOKENYARD_DEVICE uint32_t first_with_known_weights(const ReadyWords& ready_words, uint32_t first) {
  for (uint32_t rank = 0; rank < ready_words.ranks; ++rank) {
    const CallWord call = ready_words.call(rank);
    if (call.weights() != Weights::either && call.kind() == ready_words.call(first).kind())
      return rank;
  }
  return first;
}

/// Returns how a present rank's call differs from that of `first`, the first of them, or, in
/// weights, from that of the first rank that knows. The ready words decide alone, and they are the
/// same on all ranks: a comparison with one's own call would escape a rank that agrees with two
/// ranks that differ.
TOKENYARD_DEVICE CallDifference difference_of(const ReadyWords& ready_words, uint32_t first,
                                              uint32_t rank) {
  const CallWord call = ready_words.call(rank);
  if (!ready_words.call(first).agrees_with(call))
    return {.there_is = true, .word = ReadyWord::call, .than = first};
  const uint32_t knows = first_with_known_weights(ready_words, first);
  if (!ready_words.call(knows).agrees_with(call))
    return {.there_is = true, .word = ReadyWord::call, .than = knows};
  ReadyWord word = ReadyWord::route;
  if (ready_words.of(word, rank) == ready_words.of(word, first))
    word = differing_word(ready_words, first, rank);
  return {.there_is = word != ReadyWord::call, .word = word, .than = first};
}

/// Refuses the call if the ranks have made different ones; returns false if this thread found that.
/// Called by a thread group that has synchronized after read_ready_words. All ranks refuse, and
/// name the first rank whose call differs. If rank 0's call exchanges counts, rows that differ are
/// refused with these: `differing_rank` takes the first such rank, and is null only if this rank's
/// call exchanges none. Rank 0's word decides: the ranks' own kinds may differ, and they would name
/// different ranks.
TOKENYARD_DEVICE bool compare_calls(const CallParams& params, const ReadyWords& ready_words,
                                    const CallDeadline& deadline, Phase phase,
                                    ThreadGroup thread_group, uint32_t* differing_rank) {
  const bool refused_later = exchanges_counts(ready_words.call(params.first_present).kind());
  const auto fails = [&](const CallDifference& difference) {
    return difference.there_is && !(refused_later && difference.of_rows());
  };
  const auto differs = [&](uint32_t rank) {
    if (params.absent.contains(rank) && !mutated()) return CallDifference{};
    return difference_of(ready_words, params.first_present, rank);
  };
  bool same = true;
  for (uint32_t rank = thread_group.index; rank < params.ranks; rank += thread_group.size) {
    const CallDifference difference = differs(rank);
    if (!difference.there_is) [[likely]]
      continue;
    if (!fails(difference)) {
      // Else this rank's own call is of another kind, and the call fails for that.
      if (differing_rank != nullptr) fetch_min<Order::relaxed, Scope::block>(differing_rank, rank);
      continue;
    }
    same = false;
    uint32_t first = 0;
    while (!fails(differs(first))) ++first;
    if (first != rank) continue;  // Another thread reports it.
    const auto value = [&](uint32_t of) {
      return DifferingWord::of(difference.word, difference.than,
                               ready_words.of(difference.word, of))
          .bits;
    };
    deadline.fail(Failure::refused, Awaited{.phase = static_cast<uint32_t>(phase),
                                            .rank = rank,
                                            .expected = value(difference.than),
                                            .seen = value(rank)});
  }
  return same;
}

/// Waits for every present rank's ready words; returns false if one this thread awaits has not
/// arrived. Called by a thread group, which then synchronizes. Acquire: orders the peers' last uses
/// of their buffers (dispatch) or their stores of the rows there (combine) before our accesses.
TOKENYARD_DEVICE bool read_ready_words(const CallParams& params, const ReadyWords& ready_words,
                                       const Waits& waits, const CallDeadline& deadline,
                                       uint32_t epoch, Phase phase, ThreadGroup thread_group) {
  const uint64_t begun_ns = block::index() == 0 ? now_ns() : 0;
  bool all_here = true;
  for (uint32_t i = thread_group.index; i < params.ranks * kReadyWords; i += thread_group.size) {
    const uint32_t source = i / kReadyWords;
    const auto word = static_cast<ReadyWord>(i % kReadyWords);
    if (params.absent.contains(source) && !mutated()) {
      ready_words.of(word, source) = 0;
      continue;
    }
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

/// Waits for and compares all ready words; returns false if the call has failed. Called by the
/// whole block, which synchronizes.
TOKENYARD_DEVICE bool await_ready_words(const CallParams& params, const ReadyWords& ready_words,
                                        const Waits& waits, const CallDeadline& deadline,
                                        uint32_t epoch, Phase phase) {
  const ThreadGroup threads = ThreadGroup::of_block();
  if (block::any(!read_ready_words(params, ready_words, waits, deadline, epoch, phase, threads)))
    return false;
  // No counts are exchanged in this call, so only a failure can report rows that differ.
  return !block::any(!compare_calls(params, ready_words, deadline, phase, threads, nullptr));
}

/// Signals every rank that this block has finished. Called by some threads of a block once all its
/// stores to other ranks are complete and all its loads from them done. Release: orders those,
/// passed on by the preceding block barrier, before the word.
TOKENYARD_DEVICE void say_finished(const CallParams& params, CallShared& shared,
                                   ThreadGroup thread_group) {
  for (uint32_t rank = thread_group.index; rank < params.ranks; rank += thread_group.size) {
    if (params.absent.contains(rank) && !mutated()) continue;
    store<Order::release, Scope::sys>(params.control.finished(rank, params.rank, block::index()),
                                      shared.epoch);
  }
  if (thread_group.index == 0) note(params, shared, Moment::finished);
}

/// Waits until every block of every rank has finished. Called by the whole of block 0. Acquire:
/// orders the peers' stores before what runs after this kernel, and before `watcher` learns of each
/// block.
template <class Watcher>
TOKENYARD_DEVICE void await_finished(const CallParams& params, const ReadyWords& ready_words,
                                     const Waits& waits, const CallDeadline& deadline,
                                     uint32_t epoch, Phase phase, const Watcher& watcher) {
  const Control& control = params.control;
  const uint64_t begun_ns = now_ns();
  // Loaded while the others finish: no other thread adds to it, and the load takes a microsecond.
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
      // No peer is a call ahead: it finishes none before it has this rank's ready words for it.
      return seen == epoch;
    });
    if (finished) watcher.block_finished(source, ready_words.blocks(source));
    note_wait(waits.finish(source), begun_ns);
  }
  watcher.all_finished();
  block::sync();
  const auto waited_for = [&](uint32_t rank) {
    return (uint64_t{waits.ready_word(rank)} + waits.finish(rank)) * kWaitUnitNs;
  };
  if (of_rank < params.ranks) set_total(params.statistics, total, waited + waited_for(of_rank));
  for (uint32_t rank = of_rank + block::threads(); rank < params.ranks; rank += block::threads())
    count_up(params.statistics, params.statistics.waited_for(rank), waited_for(rank));
}

/// Ends the call. Called by the whole block, which has synchronized since say_finished or is about
/// to.
template <class Watcher>
TOKENYARD_DEVICE void end_call(const CallParams& params, CallShared& shared,
                               const ReadyWords& ready_words, const Waits& waits,
                               const CallDeadline& deadline, Phase phase, const Watcher& watcher) {
  if (block::index() == 0) {
    await_finished(params, ready_words, waits, deadline, shared.epoch, phase, watcher);
    if (thread::index() == 0) note(params, shared, Moment::ended);
  }
  if (thread::index() == 0) show_moments(params, shared);
}

}  // namespace tokenyard::throughput
