/// The kernel that sums a row's results; reduce_rows.hpp tells what for.
#pragma once

#include "device/device.hpp"
#include "expert_parallel/expert_major/reduce_rows.hpp"
#include "expert_parallel/throughput/phase.hpp"
#include "expert_parallel/throughput/row_sums_kernel.hpp"

namespace tokenyard::expert_major {

using throughput::RingPosition;

/// A warp's place in its group, and what the group shares.
struct ReduceGroup {
  const ReduceParams& params;
  const Deadline& deadline;
  uint32_t index, summer, summers;  ///< summer: of the group's; `summers`: the warp that fetches
  Completion* full;                 ///< [stages]
  Completion* empty;                ///< [stages]
  std::byte* stages;                ///< [stages][stage_bytes]

  DEVICE static ReduceGroup mine(const ReduceParams& params, ReduceShared& shared,
                                 const Deadline& deadline) {
    const uint32_t warps = block::threads() / kWarpLanes / params.groups;
    const uint32_t group = warp::index() / warps, place = warp::index() % warps;
    const uint32_t first = group * params.plan.stages;
    return {.params = params,
            .deadline = deadline,
            .index = group,
            .summer = place == 0 ? warps - 1 : place - 1,
            .summers = warps - 1,
            .full = shared.full + first,
            .empty = shared.empty + first,
            .stages = block::shared_tail<ReduceShared>() + size_t{first} * params.plan.stage_bytes};
  }
  DEVICE bool fetches() const { return summer == summers; }
  DEVICE bool await_stage(throughput::Phase phase, Completion& completion, uint32_t lap) const {
    Awaited what{
        .phase = static_cast<uint32_t>(phase), .rank = 0, .expected = lap + 1, .seen = lap};
    return wait_until(deadline, what, [&] { return completion.done(lap & 1); });
  }

  /// `body(row, slot)` for each row of the group, by all lanes, until it is false. `slot`: of this
  /// lane's pick; the next row's is on its way meanwhile.
  template <class Body>
  DEVICE void each_row(Body body) const {
    const uint32_t stride = grid::blocks() * params.groups;
    uint32_t row = block::index() * params.groups + index;
    int32_t coming = slot_of(row);
    while (row < params.rows) {
      const int32_t slot = coming;
      coming = slot_of(row + stride);
      if (!body(row, slot)) return;
      row += stride;
    }
  }

 private:
  DEVICE int32_t slot_of(uint32_t row) const {
    if (row >= params.rows || warp::lane() >= params.topk) return -1;
    return load_cached(params.slots + size_t{row} * params.topk + warp::lane());
  }
};

/// The fetching warp. Returns once every load has landed, or the call has failed and those that
/// were started have.
DEVICE void fetch_results(const ReduceGroup& group) {
  const ReduceParams& params = group.params;
  const throughput::StagePlan& plan = params.plan;
  RingPosition at;
  group.each_row([&](uint32_t, int32_t slot) {
    const uint32_t wanted = warp::ballot(slot >= 0);
    bool fetched = true;
    for (uint32_t segment = 0; segment < plan.segments && fetched; ++segment) {
      const uint32_t bytes = plan.bytes_of(segment, params.row_bytes);
      // A row may have more picks than the ring has stages: they take turns, so that a lane waits
      // for stages of earlier turns only, never for a lane of its own.
      for (uint32_t left = wanted; left != 0 && fetched;) {
        const uint32_t nth = population(left & lanes_below());
        const bool mine = (left >> warp::lane() & 1) != 0 && nth < plan.stages;
        RingPosition stage = at;
        if (mine) stage.advance(nth, plan.stages);
        if (mine && stage.lap > 0)
          fetched = group.await_stage(throughput::Phase::combine_stage, group.empty[stage.stage],
                                      stage.lap - 1);
        if (mine && fetched) {
          Completion& full = group.full[stage.stage];
          full.arrive_expect(bytes);
          bulk::load(group.stages + stage.stage * plan.stage_bytes,
                     params.y + static_cast<size_t>(slot) * params.row_bytes +
                         segment * plan.segment_bytes,
                     bytes, full);
        }
        const uint32_t taken = warp::ballot(mine);
        at.advance(population(taken), plan.stages);
        left &= ~taken;
        fetched = warp::all(fetched);
      }
    }
    return fetched;
  });
  if (warp::lane() == 0) let_loads_land(group.full, at, plan.stages);
  warp::sync();
}

/// By each summing warp, for rows of one type.
template <class Piece>
DEVICE void add_results(const ReduceGroup& group) {
  const ReduceParams& params = group.params;
  const throughput::StagePlan& plan = params.plan;
  throughput::SumLane lane{.first = group.summer * kWarpLanes + warp::lane(),
                           .stride = group.summers * kWarpLanes,
                           .pieces = 0};
  RingPosition at;
  throughput::Sums<Piece> sums;
  group.each_row([&](uint32_t row, int32_t slot) {
    const uint32_t there = warp::ballot(slot >= 0);
    const float weight = params.weights != nullptr && slot >= 0
                             ? params.weights[size_t{row} * params.topk + warp::lane()]
                             : 1;
    for (uint32_t segment = 0; segment < plan.segments; ++segment) {
      lane.pieces = plan.bytes_of(segment, params.row_bytes) / sizeof(Bytes16);
      sums.clear();
      for (uint32_t left = there; left != 0; left &= left - 1) {
        if (!warp::all(
                group.await_stage(throughput::Phase::combine_load, group.full[at.stage], at.lap)))
          return false;
        const auto* const result =
            reinterpret_cast<const Bytes16*>(group.stages + at.stage * plan.stage_bytes);
        if (params.weights == nullptr)
          sums.add_row(result, lane);
        else
          sums.add_row_scaled(result, warp::shuffle(weight, first_bit(left)), lane);
        warp::sync();
        if (warp::lane() == 0) group.empty[at.stage].arrive();
        at.advance(1, plan.stages);
      }
      sums.write(reinterpret_cast<Bytes16*>(params.to + size_t{row} * params.row_bytes +
                                            segment * plan.segment_bytes),
                 lane);
    }
    return true;
  });
}

DEVICE void add_results_of_type(const ReduceGroup& group) {
  switch (group.params.type) {
    case ElementType::fp16:
      return add_results<throughput::Fp16Piece>(group);
    case ElementType::fp32:
      return add_results<throughput::Fp32Piece>(group);
    default:
      return add_results<throughput::Bf16Piece>(group);
  }
}

DEVICE void reduce_rows(const ReduceParams& params) {
  auto& shared = block::shared<ReduceShared>();
  const Deadline deadline = params.patience.start();
  const ReduceGroup group = ReduceGroup::mine(params, shared, deadline);
  for (uint32_t i = thread::index(); i < params.groups * params.plan.stages;
       i += block::threads()) {
    shared.full[i].init(1);
    shared.empty[i].init(group.summers);
  }
  // For the completions; and the results, which kernels before this one wrote, are read by copies.
  fence_async();
  // After a call that failed there are no places that could be trusted.
  if (block::any(deadline.failed())) return;
  if (group.fetches())
    fetch_results(group);
  else
    add_results_of_type(group);
}

DEFINE_KERNEL(reduce_rows_kernel, reduce_rows, ReduceParams, ReduceShared, kReduceThreadsMax)

}  // namespace tokenyard::expert_major
