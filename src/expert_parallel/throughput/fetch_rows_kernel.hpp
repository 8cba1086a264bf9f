/// The fetching warp of a group: brings the rows of the group's tokens into its ring, a lane a
/// rank.
#pragma once

#include "expert_parallel/throughput/combine_shared.hpp"

namespace tokenyard::throughput {

DEVICE Peer<const std::byte> rows_on(const Combine& call, uint32_t rank) {
  return (call.params.call.arenas.of(rank) +
          static_cast<std::ptrdiff_t>(call.hellos().rows_at(rank)))
      .template as<const std::byte>();
}

/// Whether a rank's rows of this rank's tokens are told of one by one. A rank reads its own from
/// where they lie, unless they are yet to be summed.
DEVICE bool come_later(const Combine& call, uint32_t rank) {
  if (rank != call.params.call.rank) return call.hellos().call(rank).comes_later();
  return call.params.preparation.blocks != 0 && call.params.preparation.of_own_tokens;
}

/// The rows of a group's coming steps, each once it can be read. As many steps are looked at
/// together as have a lane for each rank: routes lie in memory, and so do the words that tell of
/// rows that come later, and to wait for all of them takes no longer than to wait for one.
class ComingRows {
 public:
  /// By every warp, but only one that fetches looks.
  DEVICE ComingRows(const Combine& call, const CombineWarp& mine)
      : call_(call),
        looks_(mine.group < call.params.groups && mine.fetches() && !call.prepares()),
        ranks_(call.params.ranks_a_step),
        steps_(kWarpLanes / ranks_),
        turn_(warp::lane() % ranks_),
        used_(steps_),
        ahead_(CombineStep::first(call.params, mine.group)) {
    ahead_.advance(call.params, warp::lane() / ranks_);
    look_ahead();
  }

  /// Of the next step, this lane's. By all lanes; false if the call has failed.
  DEVICE bool next(RankedRow& row) {
    if (used_ == steps_) {
      rows_ = coming_;
      used_ = 0;
      ahead_.advance(call_.params, steps_);
      look_ahead();
      const bool later = rows_.row >= 0 && come_later(call_, rows_.rank);
      if (warp::any(later)) {
        if (!warp::all(!later || await_row())) return false;
        // From the words that lanes have seen across to the copies that other lanes start.
        warp::sync();
        fence_async();
      }
    }
    const uint32_t from = (used_ * ranks_ + turn_) % kWarpLanes;
    row = {
        .token = 0, .rank = warp::shuffle(rows_.rank, from), .row = warp::shuffle(rows_.row, from)};
    if (warp::lane() >= ranks_) row.row = -1;
    ++used_;
    return true;
  }

 private:
  DEVICE void look_ahead() {
    coming_ = looks_ && warp::lane() < steps_ * ranks_ ? ahead_.row_of_turn(call_.params, turn_)
                                                       : RankedRow{};
  }

  /// Acquire: the row.
  DEVICE bool await_row() const {
    const CallParams& params = call_.params.call;
    Awaited what{.phase = static_cast<uint32_t>(Phase::combine_results),
                 .rank = rows_.rank,
                 .expected = call_.epoch};
    return wait_until(call_.deadline, what, [&] {
      what.seen = load<Order::acquire, Scope::sys>(
          params.control.prepared(params.rank, rows_.token, rows_.rank));
      return what.seen == what.expected;
    });
  }

  const Combine& call_;
  const bool looks_;
  const uint32_t ranks_, steps_;  // Of a look.
  const uint32_t turn_;           // This lane's.
  uint32_t used_;                 // Steps of the look.
  CombineStep ahead_;             // This lane's of the look after.
  RankedRow rows_, coming_;
};

/// Starts the load of one row's segment into a stage, once that is free. False if the call failed.
DEVICE bool fetch_row(const Combine& call, const CombineRing& ring, const CombineStep& step,
                      const RankedRow& row, RingPosition at) {
  const CombineParams& params = call.params;
  const StagePlan& plan = params.plan;
  // On the first lap stages have never been used.
  if (at.lap > 0 && !call.await_stage(Phase::combine_stage, ring.empty[at.stage], at.lap - 1))
    return false;
  const uint32_t bytes = plan.bytes_of(step.segment, params.row_bytes);
  const size_t offset =
      static_cast<size_t>(row.row) * params.row_bytes + step.segment * plan.segment_bytes;
  std::byte* const stage = ring.stages + at.stage * plan.stage_bytes;
  Completion& full = ring.full[at.stage];
  full.arrive_expect(bytes);
  const Preparation& preparation = params.preparation;
  if (row.rank == params.call.rank && preparation.blocks != 0 && !preparation.of_own_tokens)
    bulk::load(stage, preparation.results.y + offset, bytes, full);
  else
    bulk::load(stage, rows_on(call, row.rank) + static_cast<std::ptrdiff_t>(offset), bytes, full);
  return true;
}

/// Returns once every load has landed, or the call has failed and those that were started have.
DEVICE void fetch_rows(const Combine& call, uint32_t group, ComingRows& coming) {
  const CombineParams& params = call.params;
  const CombineRing ring = CombineRing::of(call, group);
  // The peers' ordinary stores to their rows, of which their hellos told, come before the copies.
  fence_async();
  RingPosition at;
  CombineStep step = CombineStep::first(params, group);
  bool going = true;
  for (; going && step.within(params); step.advance(params)) {
    RankedRow row;
    if (!coming.next(row)) break;
    const uint32_t wanted = warp::ballot(row.row >= 0);
    // A step fits the ring, so a lane waits for stages of earlier steps only, never for a lane of
    // its own warp.
    RingPosition mine = at;
    mine.advance(population(wanted & lanes_below()), params.plan.stages);
    going = warp::all(row.row < 0 || fetch_row(call, ring, step, row, mine));
    at.advance(population(wanted), params.plan.stages);
  }
  if (warp::lane() == 0) let_loads_land(ring.full, at, params.plan.stages);
  warp::sync();
}

}  // namespace tokenyard::throughput
