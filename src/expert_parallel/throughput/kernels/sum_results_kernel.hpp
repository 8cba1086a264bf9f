/// Sums results to one row per received row. A block's warps work in groups: the first warp of a
/// group fetches the results of a row into the group's ring, one lane per choice, and the others
/// add them up. Rows with more choices than a warp has lanes are taken in batches of 32.
///
/// `Rows` enumerates the rows of a group, identically for each of its warps:
///
///     next(row)        sets `row.row`, among other things, to the next row; false if there is none
///     written(row)     called by each summing warp after it has written its part of the row
///     all_written()    called by one lane of each summing warp after the last row
#pragma once

#include "device/apart.hpp"
#include "device/device.hpp"
#include "expert_parallel/throughput/kernels/phase.hpp"
#include "expert_parallel/throughput/kernels/results.hpp"
#include "expert_parallel/throughput/kernels/row_sums_kernel.hpp"

namespace tokenyard::throughput {

/// The role of a warp in its group, and what the group shares.
struct ResultsGroup {
  const ResultsParams& params;
  const CallDeadline& deadline;
  uint32_t summer, summers;  ///< summer: index in the group; `summers` for the warp that fetches
  Completion* full;          ///< [stages]
  Completion* empty;         ///< [stages]; every summing lane arrives
  std::byte* stages;         ///< [stages][stage_bytes]

  TOKENYARD_DEVICE bool fetches() const { return summer == summers; }
  TOKENYARD_DEVICE bool await_stage(Phase phase, Completion& completion, uint32_t lap) const {
    Awaited what{.phase = static_cast<uint32_t>(phase),
                 .rank = 0,
                 .expected = lap + 1,
                 .seen = lap,
                 .from_rank = false};  // This rank's own warps.
    return wait_until(deadline, what, [&] { return completion.done(lap & 1); });
  }
  /// Waits until `stages_wanted` stages from `at` on have been summed. Called by all lanes.
  TOKENYARD_DEVICE bool await_summed(RingPosition at, uint32_t stages_wanted) const {
    return await_free(at, stages_wanted, params.plan.stages, [&](uint32_t stage, uint32_t lap) {
      return await_stage(Phase::combine_stage, empty[stage], lap);
    });
  }

  /// Calls `body(row, slot)` on all lanes for each row until it returns false. `slot` belongs to
  /// this lane's choice among the first 32; the next row's slot is loaded meanwhile.
  template <class Rows, class Body>
  TOKENYARD_DEVICE bool each_row(Rows& rows, Body body) const {
    typename Rows::Row coming{};
    bool more = rows.next(coming);
    int32_t coming_slot = more ? slot_of(coming.row, 0) : -1;
    while (more) {
      const typename Rows::Row row = coming;
      const int32_t slot = coming_slot;
      more = rows.next(coming);
      if (more) coming_slot = slot_of(coming.row, 0);
      if (!body(row, slot)) return false;
    }
    return true;
  }

  /// Returns the place of this lane's choice, counted from `first_choice`, or -1.
  TOKENYARD_DEVICE int32_t slot_of(uint32_t row, uint32_t first_choice) const {
    const uint32_t choice = first_choice + warp::lane();
    if (choice >= params.topk) return -1;
    return load_cached(params.slots + size_t{row} * params.topk + choice);
  }

  /// Returns the weight of that choice; 1 if results have no weights.
  TOKENYARD_DEVICE float weight_of(uint32_t row, uint32_t first_choice, int32_t slot) const {
    if (params.weights == nullptr || slot < 0) return 1;
    return params.weights[size_t{row} * params.topk + first_choice + warp::lane()];
  }
};

/// The fetching warp. Returns once every load has landed; in a failed call, every load already
/// started.
template <class Rows>
TOKENYARD_DEVICE void fetch_results(const ResultsGroup& group, Rows& rows) {
  const ResultsParams& params = group.params;
  const StagePlan& plan = params.plan;
  RingPosition at;
  group.each_row(rows, [&](const typename Rows::Row& row, int32_t first_slot) {
    const uint32_t first_wanted = warp::ballot(first_slot >= 0);
    for (uint32_t segment = 0; segment < plan.segments; ++segment) {
      const uint32_t bytes = plan.bytes_of(segment, params.row_bytes);
      int32_t slot = first_slot;
      uint32_t wanted = first_wanted;
      for (uint32_t first = 0;;) {
        // A row may have more choices than the ring has stages. They take turns, so that this waits
        // only for stages of earlier turns, never for this turn's own.
        for (uint32_t left = wanted; left != 0;) {
          const uint32_t nth = population(left & lanes_below());
          const bool mine = (left >> warp::lane() & 1) != 0 && nth < plan.stages;
          const uint32_t taken = warp::ballot(mine);
          if (!group.await_summed(at, population(taken))) return false;
          if (mine) {
            RingPosition stage = at;
            stage.advance(nth, plan.stages);
            Completion& full = group.full[stage.stage];
            full.arrive_expect(bytes);
            bulk::load(group.stages + stage.stage * plan.stage_bytes,
                       params.y + static_cast<size_t>(slot) * params.row_bytes +
                           segment * plan.segment_bytes,
                       bytes, full);
          }
          at.advance(population(taken), plan.stages);
          left &= ~taken;
        }
        first += kWarpLanes;
        if (first >= params.topk) break;
        slot = group.slot_of(row.row, first);
        wanted = warp::ballot(slot >= 0);
      }
    }
    return true;
  });
  if (warp::lane() == 0) let_loads_land(group.full, at, plan.stages);
  warp::sync();
}

/// Called by each summing warp, for one element type. Returns false if the call has failed.
template <class Piece, class Rows>
TOKENYARD_DEVICE bool add_results(const ResultsGroup& group, Rows& rows) {
  const ResultsParams& params = group.params;
  const StagePlan& plan = params.plan;
  SumLane lane{.first = group.summer * kWarpLanes + warp::lane(),
               .stride = group.summers * kWarpLanes,
               .pieces = 0};
  RingPosition at;
  Sums<Piece> sums;
  return group.each_row(rows, [&](const typename Rows::Row& row, int32_t first_slot) {
    const uint32_t first_there = warp::ballot(first_slot >= 0);
    const float first_weight = group.weight_of(row.row, 0, first_slot);
    for (uint32_t segment = 0; segment < plan.segments; ++segment) {
      lane.pieces = plan.bytes_of(segment, params.row_bytes) / sizeof(Bytes16);
      sums.clear();
      uint32_t there = first_there;
      float weight = first_weight;
      for (uint32_t first = 0;;) {
        for (uint32_t left = there; left != 0; left &= left - 1) {
          if (!warp::all(group.await_stage(Phase::combine_load, group.full[at.stage], at.lap)))
            return false;
          const auto* const result =
              reinterpret_cast<const Bytes16*>(group.stages + at.stage * plan.stage_bytes);
          if (params.weights == nullptr)
            sums.add_row(result, lane);
          else
            sums.add_row_scaled(result, warp::shuffle(weight, first_bit(left)), lane);
          warp::sync();
          group.empty[at.stage].arrive();
          at.advance(1, plan.stages);
        }
        first += kWarpLanes;
        if (first >= params.topk) break;
        const int32_t slot = group.slot_of(row.row, first);
        there = warp::ballot(slot >= 0);
        weight = group.weight_of(row.row, first, slot);
      }
      sums.write(reinterpret_cast<Bytes16*>(params.to + size_t{row.row} * params.row_bytes +
                                            segment * plan.segment_bytes),
                 lane);
    }
    rows.written(row);
    return true;
  });
}

template <class Rows>
TOKENYARD_DEVICE bool add_results_of_type(const ResultsGroup& group, Rows& rows) {
  switch (group.params.type) {
    case ElementType::fp16:
      return add_results<Fp16Piece>(group, rows);
    case ElementType::fp32:
      return add_results<Fp32Piece>(group, rows);
    default:
      return add_results<Bf16Piece>(group, rows);
  }
}

/// Called by each warp of a group.
template <class Rows>
TOKENYARD_DEVICE void sum_results(const ResultsGroup& group, Rows rows) {
  if (group.fetches()) {
    fetch_results(group, rows);
  } else if (add_results_of_type(group, rows)) {
    warp::sync();
    if (warp::lane() == 0) rows.all_written();
  }
}

}  // namespace tokenyard::throughput
