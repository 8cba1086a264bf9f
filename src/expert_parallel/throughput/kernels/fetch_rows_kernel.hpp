/// The fetching warp of a group: loads the rows of the group's tokens into its ring, one lane per
/// rank. A stage is refilled only after `empty` proves that every summing lane has read it.
#pragma once

#include "expert_parallel/throughput/kernels/pull_order_kernel.hpp"

namespace tokenyard::throughput {

TOKENYARD_DEVICE Peer<const std::byte> rows_on(const Combine& call, uint32_t rank) {
  return (call.params.call.arenas.of(rank) +
          static_cast<std::ptrdiff_t>(call.ready_words().rows_at(rank)))
      .template as<const std::byte>();
}

/// Returns whether a rank signals its rows of this rank's tokens one by one. A rank reads its own
/// rows in place, unless they must first be summed.
TOKENYARD_DEVICE bool come_later(const Combine& call, uint32_t rank) {
  if (rank != call.params.call.rank) return call.ready_words().call(rank).comes_later();
  return call.params.preparation.blocks != 0 && call.params.preparation.of_own_tokens;
}

/// One step of fetching: the rows of one segment of a token on some ranks.
struct CombineStep {
  uint32_t token, segment, first_rank;

  TOKENYARD_DEVICE bool begins_segment() const { return first_rank == 0; }
  TOKENYARD_DEVICE bool ends_segment(const CombineParams& params) const {
    return first_rank + params.ranks_a_step >= params.call.ranks;
  }
};

/// A row of a token on a rank, or none.
struct RankedRow {
  uint32_t token = 0, rank = 0;
  int32_t row = -1;
};

/// Returns the row on the rank of a turn.
TOKENYARD_DEVICE RankedRow row_of_turn(const CombineParams& params, uint32_t token, uint32_t turn) {
  if (turn >= params.call.ranks) return {};
  const size_t of_token = size_t{token} * params.call.ranks;
  const uint32_t rank =
      params.order == nullptr ? turn : load_cached(params.order + of_token + turn);
  // The caller's order may be invalid: such a rank has no row.
  if (rank >= params.call.ranks) return {};
  return {.token = token, .rank = rank, .row = load_cached(params.route + of_token + rank)};
}

/// The rows of a group's next steps, each returned once it can be read. As many steps are loaded
/// together as there are groups of lanes with one lane per rank: routes and `prepared` words are in
/// memory, and waiting for all of them takes no longer than waiting for one.
class ComingRows {
 public:
  /// Called by every warp; only a fetching warp loads routes.
  TOKENYARD_DEVICE ComingRows(const Combine& call, const CombineWarp& mine)
      : call_(call),
        looks_(mine.group < call.params.groups && mine.fetches() && !call.prepares()),
        ranks_(call.params.ranks_a_step),
        turns_((call.params.call.ranks + ranks_ - 1) / ranks_),
        steps_of_token_(call.params.plan.segments * turns_),
        steps_(kWarpLanes / ranks_),
        order_(call.params, call.epoch, mine.group) {
    if (!looks_) return;
    order_.begin();
    look_ahead();
  }

  /// Finds the next step and this lane's row of it. Called by all lanes. Returns false if there is
  /// none or the call has failed.
  TOKENYARD_DEVICE bool next(CombineStep& step, RankedRow& row) {
    if (used_ == now_.steps && !go_on()) return false;
    const uint32_t first = used_ * ranks_;
    step = {.token = warp::shuffle(now_.step.token, first),
            .segment = warp::shuffle(now_.step.segment, first),
            .first_rank = warp::shuffle(now_.step.first_rank, first)};
    const uint32_t from = (first + warp::lane()) % kWarpLanes;
    row = {.token = step.token,
           .rank = warp::shuffle(now_.row.rank, from),
           .row = warp::shuffle(now_.row.row, from)};
    if (warp::lane() >= ranks_) row.row = -1;
    ++used_;
    return true;
  }

  TOKENYARD_DEVICE bool failed() const { return failed_; }

 private:
  /// This lane's step and row.
  struct Look {
    uint32_t steps = 0;  ///< over all lanes
    CombineStep step{};
    RankedRow row;
  };

  TOKENYARD_DEVICE bool go_on() {
    now_ = coming_;
    used_ = 0;
    if (now_.steps == 0) return false;
    look_ahead();
    const bool later = now_.row.row >= 0 && come_later(call_, now_.row.rank);
    if (!warp::any(later)) return true;
    failed_ = !warp::all(!later || await_row());
    if (failed_) return false;
    // Orders the rows that lanes have acquired, shared by the warp barrier, before the async copies
    // of other lanes.
    warp::sync();
    fence_async();
    return true;
  }

  TOKENYARD_DEVICE void look_ahead() {
    if (at_ == run_.tokens * steps_of_token_) {
      run_ = order_.next(std::max(steps_ / steps_of_token_, 1u));
      at_ = 0;
    }
    coming_ = {
        .steps = std::min(steps_, run_.tokens * steps_of_token_ - at_), .step = {}, .row = {}};
    const uint32_t mine = warp::lane() / ranks_;
    if (mine < coming_.steps) {
      const uint32_t number = at_ + mine, token = number / steps_of_token_;
      const uint32_t part = number - token * steps_of_token_, segment = part / turns_;
      coming_.step = {.token = run_.token + token * run_.stride,
                      .segment = segment,
                      .first_rank = (part - segment * turns_) * ranks_};
      coming_.row = row_of_turn(call_.params, coming_.step.token,
                                coming_.step.first_rank + warp::lane() - mine * ranks_);
    }
    at_ += coming_.steps;
  }

  /// Waits until this lane's row is prepared. Acquire: orders the peer's stores of the row before
  /// our copy.
  TOKENYARD_DEVICE bool await_row() const {
    const CallParams& params = call_.params.call;
    Awaited what{.phase = static_cast<uint32_t>(Phase::combine_results),
                 .rank = now_.row.rank,
                 .expected = call_.epoch};
    return wait_until(call_.deadline, what, [&] {
      what.seen = load<Order::acquire, Scope::sys>(
          params.control.prepared(params.rank, now_.row.token, now_.row.rank));
      return what.seen == what.expected;
    });
  }

  const Combine& call_;
  const bool looks_;
  const uint32_t ranks_, turns_;           // Ranks per step; steps per segment of a token.
  const uint32_t steps_of_token_, steps_;  // steps_: most steps loaded together.
  PullOrder order_;
  TokenRun run_{};   // Tokens whose steps are being loaded,
  uint32_t at_ = 0;  // and how many of the steps have been.
  Look now_, coming_;
  uint32_t used_ = 0;  // Steps of now_ that next() has returned.
  bool failed_ = false;
};

/// Waits until `stages` stages from `at` on have been summed. Called by all lanes.
TOKENYARD_DEVICE bool await_summed(const Combine& call, const CombineRing& ring, RingPosition at,
                                   uint32_t stages) {
  return await_free(at, stages, call.params.plan.stages, [&](uint32_t stage, uint32_t lap) {
    return call.await_stage(Phase::combine_stage, ring.empty[stage], lap);
  });
}

/// Describes the content of a free stage to the summing warps.
TOKENYARD_DEVICE void name(const CombineRing& ring, uint32_t stage, const StagedRow& staged) {
  ring.staged[stage] = staged;
  ring.named[stage].arrive();
}

/// Starts loading one segment of a row into a free stage.
TOKENYARD_DEVICE void fetch_row(const Combine& call, const CombineRing& ring, const RankedRow& row,
                                const StagedRow& staged, RingPosition at) {
  name(ring, at.stage, staged);
  Completion& full = ring.full[at.stage];
  if (!staged.holds_row) {
    full.arrive();
    return;
  }
  const CombineParams& params = call.params;
  const StagePlan& plan = params.plan;
  const uint32_t bytes = plan.bytes_of(staged.segment, params.row_bytes);
  const size_t offset =
      static_cast<size_t>(row.row) * params.row_bytes + staged.segment * plan.segment_bytes;
  std::byte* const stage = ring.stages + at.stage * plan.stage_bytes;
  full.arrive_expect(bytes);
  const Preparation& preparation = params.preparation;
  if (row.rank == params.call.rank && preparation.blocks != 0 && !preparation.of_own_tokens)
    bulk::load(stage, preparation.results.y + offset, bytes, full);
  else
    bulk::load(stage, rows_on(call, row.rank) + static_cast<std::ptrdiff_t>(offset), bytes, full);
}

/// Loads a step's rows into the next stages, one lane per row. Called by all lanes. A step without
/// rows takes a stage too, so that the summing warps learn of its token.
TOKENYARD_DEVICE bool fetch_step(const Combine& call, const CombineRing& ring,
                                 const CombineStep& step, const RankedRow& row, RingPosition& at) {
  const uint32_t rows = warp::ballot(row.row >= 0), wanted = rows == 0 ? 1 : rows;
  const uint32_t earlier = wanted & lanes_below();
  const bool mine = (wanted >> warp::lane() & 1) != 0;
  const bool last = (wanted & ~lanes_below()) == 1u << warp::lane();
  const StagedRow staged{
      .token = step.token,
      .segment = step.segment,
      .holds_row = rows != 0,
      .begins = step.begins_segment() && earlier == 0,
      .ends = step.ends_segment(call.params) && last,
  };
  // A step fits in the ring, so this waits only for stages of earlier steps, never for this step's
  // own.
  if (!await_summed(call, ring, at, population(wanted))) return false;
  RingPosition my_stage = at;
  my_stage.advance(population(earlier), call.params.plan.stages);
  if (mine) fetch_row(call, ring, row, staged, my_stage);
  at.advance(population(wanted), call.params.plan.stages);
  return true;
}

/// Waits until every load of a ring filled up to `end` has landed. Called by all lanes.
TOKENYARD_DEVICE bool await_loads(const Combine& call, const CombineRing& ring, RingPosition end) {
  static_assert(kStagesMax <= kWarpLanes);
  const uint32_t stage = warp::lane();
  if (stage >= call.params.plan.stages || (stage >= end.stage && end.lap == 0)) return true;
  const uint32_t lap = stage < end.stage ? end.lap : end.lap - 1;
  return call.await_stage(Phase::combine_load, ring.full[stage], lap);
}

/// Fetches all rows; returns once every load has landed. Returns false if the call has failed, once
/// the loads already started have landed. The summing warps must still be told that no row follows
/// (say_over).
TOKENYARD_DEVICE bool fetch_rows(const Combine& call, const CombineRing& ring, ComingRows& coming,
                                 RingPosition& at) {
  // Orders the peers' ordinary stores of their rows, acquired with their ready words, before our
  // async copies.
  fence_async();
  CombineStep step;
  RankedRow row;
  bool going = true;
  while (going && coming.next(step, row)) going = fetch_step(call, ring, step, row, at);
  going = going && !coming.failed();
  if (going && warp::all(await_loads(call, ring, at))) return true;
  if (warp::lane() == 0) let_loads_land(ring.full, at, call.params.plan.stages);
  warp::sync();
  return false;
}

/// Tells the summing warps that no row follows. Called by all lanes.
TOKENYARD_DEVICE void say_over(const Combine& call, const CombineRing& ring, RingPosition at) {
  if (await_summed(call, ring, at, 1) && warp::lane() == 0)
    name(ring, at.stage, StagedRow{.over = true});
  warp::sync();
}

}  // namespace tokenyard::throughput
