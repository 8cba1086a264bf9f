/// The kernel that sums a row's results. See reduce_rows.hpp.
#pragma once

#include "device/apart.hpp"
#include "device/device.hpp"
#include "expert_parallel/by_expert/reduce_rows.hpp"
#include "expert_parallel/throughput/kernels/sum_results_kernel.hpp"

namespace tokenyard::expert_major {

/// Every stride-th row; over all groups, every row.
class EveryRow {
 public:
  struct Row {
    uint32_t row;
  };
  TOKENYARD_DEVICE EveryRow(const ReduceParams& params, uint32_t group)
      : rows_(params.rows),
        stride_(grid::blocks() * params.results.groups),
        next_(block::index() * params.results.groups + group) {}

  TOKENYARD_DEVICE bool next(Row& row) {
    row.row = next_;
    next_ += stride_;
    return row.row < rows_;
  }
  TOKENYARD_DEVICE void written(const Row&) const {}
  TOKENYARD_DEVICE void all_written() const {}

 private:
  uint32_t rows_, stride_, next_;
};

TOKENYARD_DEVICE void reduce_rows(const ReduceParams& params) {
  auto& shared = block::shared<ReduceShared>();
  const CallDeadline deadline(params.wait_context);
  const throughput::ResultsParams& results = params.results;
  const uint32_t warps = block::threads() / kWarpLanes / results.groups;
  for (uint32_t i = thread::index(); i < results.groups * results.plan.stages;
       i += block::threads()) {
    shared.full[i].init(1);
    shared.empty[i].init((warps - 1) * kWarpLanes);
  }
  // Orders the initialized completions, and ordinary stores of results by earlier kernels, before
  // the async copies.
  fence_async();
  // A failed call leaves places that cannot be trusted.
  if (block::any(deadline.failed())) return;
  const uint32_t group = warp::index() / warps, place = warp::index() % warps;
  const uint32_t first = group * results.plan.stages;
  sum_results(throughput::ResultsGroup{.params = results,
                                       .deadline = deadline,
                                       .summer = place == 0 ? warps - 1 : place - 1,
                                       .summers = warps - 1,
                                       .full = shared.full + first,
                                       .empty = shared.empty + first,
                                       .stages = block::shared_tail<ReduceShared>() +
                                                 size_t{first} * results.plan.stage_bytes},
              EveryRow(params, group));
}

TOKENYARD_DEFINE_KERNEL(reduce_rows_kernel, reduce_rows, ReduceParams, ReduceShared,
                        kReduceThreadsMax)

}  // namespace tokenyard::expert_major
