/// Prepares this rank's results in the last blocks of a combine: one row per received row, where
/// peers read them. Each writing warp publishes its progress in `written` (block scope); the warp
/// that fetches weights acquires it and signals the tokens' owners, batching as many rows as are
/// ready. A signal takes microseconds, in which no summing warp should wait (a release by the
/// summing warps after each row: 3.3 us per row, H200).
#pragma once

#include <algorithm>

#include "expert_parallel/throughput/kernels/combine_shared.hpp"
#include "expert_parallel/throughput/kernels/copy_rows_kernel.hpp"
#include "expert_parallel/throughput/kernels/sum_results_kernel.hpp"

namespace tokenyard::throughput {

/// Initializes shared memory. Called by the whole block, which must synchronize afterwards.
TOKENYARD_DEVICE void ready_preparation(const CombineParams& params, CombineShared& shared,
                                        const CombineTail& tail) {
  for (uint32_t i = thread::index(); i < kCombineWarpsMax; i += block::threads())
    shared.written[i] = 0;
  for (uint32_t rank = thread::index(); rank <= params.call.ranks; rank += block::threads()) {
    uint32_t first = 0;
    for (uint32_t before = 0; before < rank; ++before)
      first += load_cached(params.preparation.rows_from + before);
    tail.first_rows()[rank] = first;
  }
}

/// The received rows that a group prepares: rotating over the source ranks, each in the order of
/// its tokens, which is about the order in which all ranks pull. Groups stride through places in
/// that order; the places of a rank without further rows are empty.
class PlacesInTurn {
 public:
  TOKENYARD_DEVICE PlacesInTurn(const Combine& call, uint32_t group)
      : call_(call),
        sources_(ranks() - (call.params.preparation.of_own_tokens ? 0 : 1)),
        stride_(call.params.preparation.blocks * call.params.groups),
        first_((block::index() - pullers_of(call.params)) * call.params.groups + group) {
    uint32_t most = 0;
    for (uint32_t turn = 0; turn < sources_; ++turn) most = std::max(most, rows_of(source(turn)));
    const uint32_t all = most * sources_;
    count_ = all <= first_ ? 0 : (all - first_ + stride_ - 1) / stride_;
  }

  TOKENYARD_DEVICE uint32_t count() const { return count_; }

  /// Returns whether a place below count() has a row.
  TOKENYARD_DEVICE bool row_in(uint32_t place, uint32_t& source_rank, uint32_t& row) const {
    const uint32_t turn = first_ + place * stride_;
    source_rank = source(turn % sources_);
    const uint32_t of_source = turn / sources_;
    row = call_.tail.first_rows()[source_rank] + of_source;
    return of_source < rows_of(source_rank);
  }

 private:
  TOKENYARD_DEVICE uint32_t ranks() const { return call_.params.call.ranks; }
  /// The ranks after this one, then this one.
  TOKENYARD_DEVICE uint32_t source(uint32_t turn) const {
    const uint32_t rank = call_.params.call.rank + 1 + turn;
    return rank >= ranks() ? rank - ranks() : rank;
  }
  TOKENYARD_DEVICE uint32_t rows_of(uint32_t rank) const {
    return call_.tail.first_rows()[rank + 1] - call_.tail.first_rows()[rank];
  }

  const Combine& call_;
  uint32_t sources_, stride_, first_, count_;
};

/// Iterates a warp over those rows.
class RowsInTurn {
 public:
  struct Row {
    uint32_t row, place;
  };
  TOKENYARD_DEVICE RowsInTurn(const Combine& call, const CombineWarp& mine)
      : places_(call, mine.group), written_(call.shared.written[warp::index()]) {}

  TOKENYARD_DEVICE bool next(Row& row) {
    for (; place_ < places_.count(); ++place_) {
      uint32_t source = 0;
      if (!places_.row_in(place_, source, row.row)) continue;
      row.place = place_++;
      return true;
    }
    return false;
  }

  /// Records that this warp has written its part of a row. Publishes only every kRowsSaidAtOnce
  /// rows: a release waits until earlier stores have reached memory.
  TOKENYARD_DEVICE void written(const Row& row) {
    if (++since_said_ < kRowsSaidAtOnce) return;
    since_said_ = 0;
    warp::sync();
    if (warp::lane() == 0) written_up_to(row.place + 1);
  }
  /// Publishes progress. Called by one lane. Release: orders what its warp has written before the
  /// progress that the signalling warp acquires. Writer and reader use read-modify-writes, because
  /// compute-sanitizer's racecheck reports plain shared-memory stores and loads as races whatever
  /// orders them.
  TOKENYARD_DEVICE void written_up_to(uint32_t place) const {
    exchange<Order::release, Scope::block>(&written_, place);
  }
  /// Publishes that all rows are written; the places after the last row are empty. Called by one
  /// lane.
  TOKENYARD_DEVICE void all_written() const { written_up_to(places_.count()); }

 private:
  static constexpr uint32_t kRowsSaidAtOnce = 4;

  PlacesInTurn places_;
  uint32_t& written_;
  uint32_t place_ = 0;
  uint32_t since_said_ = 0;  // Rows since the last publication.
};

/// Called by each warp of a group. Rows that are copied need only its first warp.
TOKENYARD_DEVICE void prepare_rows(const Combine& call, const CombineWarp& mine) {
  // Orders ordinary stores of earlier kernels before the async copies that read them.
  if (mine.fetches()) fence_async();
  const CombineRing ring = CombineRing::of(call, mine.group);
  if (call.params.preparation.copies()) {
    RowsInTurn rows(call, mine);
    if (mine.fetches() && warp::lane() == 0) RowCopier<RowsInTurn>(call, ring, rows).copy_all();
    return;
  }
  sum_results(ResultsGroup{.params = call.params.preparation.results,
                           .deadline = call.deadline,
                           .summer = mine.summer,
                           .summers = mine.summers,
                           .full = ring.full,
                           .empty = ring.empty,
                           .stages = ring.stages},
              RowsInTurn(call, mine));
}

/// Signals prepared rows to the tokens' owners. Called by the warp besides the groups; each group
/// gets an equal part of its lanes.
TOKENYARD_DEVICE void publish_of_rows(const Combine& call) {
  const CombineParams& params = call.params;
  const uint32_t lanes = kWarpLanes / params.groups, group = warp::lane() / lanes;
  const PlacesInTurn places(call, std::min(group, params.groups - 1));
  const uint32_t count = group < params.groups ? places.count() : 0;
  // A group's first warp copies; the other warps sum.
  const uint32_t warps = CombineWarp::warps_of_group(params), first = group * warps;
  const bool copied = params.preparation.copies();
  const uint32_t from = copied ? first : first + 1, to = copied ? first + 1 : first + warps;
  // Acquire: orders each writing warp's part of the rows below that place before our signal.
  const auto written = [&] {
    uint32_t least = count;
    for (uint32_t warp = from; warp < to; ++warp)
      least =
          std::min(least, fetch_or<Order::acquire, Scope::block>(&call.shared.written[warp], 0));
    return least;
  };
  // The lanes of a group agree; its first lane reads the progress.
  uint32_t published = 0;
  while (!warp::all(published == count)) {
    uint32_t ready = published;
    bool going = true;
    if (warp::lane() % lanes == 0 && published < count) {
      Awaited what{.phase = static_cast<uint32_t>(Phase::combine_results),
                   .rank = params.call.rank,
                   .expected = published + 1};
      going = wait_until(call.deadline, what, [&] {
        ready = written();
        what.seen = ready;
        return ready > published;
      });
    }
    if (!warp::all(going)) return;
    ready = warp::shuffle(ready, group * lanes % kWarpLanes);
    // The warp barrier passes what the first lanes have acquired to all lanes, and the fence orders
    // it before the relaxed `prepared` words.
    warp::sync();
    fence<Scope::sys>();
    for (uint32_t place = published + warp::lane() % lanes; place < ready; place += lanes) {
      uint32_t source = 0, row = 0;
      if (!places.row_in(place, source, row)) continue;
      const auto token = static_cast<uint32_t>(load_cached(params.preparation.tokens + row));
      store<Order::relaxed, Scope::sys>(
          params.call.control.prepared(source, token, params.call.rank), call.epoch);
    }
    published = ready;
  }
}

}  // namespace tokenyard::throughput
