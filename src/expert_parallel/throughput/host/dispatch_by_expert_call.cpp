/// One dispatch whose rows are grouped by expert as they come, from the host's side.
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "expert_parallel/by_expert/dispatch_by_expert.hpp"
#include "expert_parallel/throughput/host/route_state.hpp"
#include "expert_parallel/throughput/kernels/dispatch_shared.hpp"

namespace tokenyard {

using expert_major::ByExpertParams;
using expert_major::ByExpertTail;
using expert_major::ExpertRowsLayout;
using throughput::DispatchParams;

void ExpertParallel::Parts::check_by_expert(const DispatchInput& input,
                                            const ExpandOptions& expand) const {
  check_dispatch(input);
  check_grouping(expand);
  if (input.watcher)
    throw InvalidArgument("watcher", "none where rows are grouped as they come", "a stream");
  if (input.format.scale_order != ScaleOrder::rows)
    throw InvalidArgument("format", "scales that travel by rows", "by columns");
}

uint32_t ExpertParallel::Parts::most_rows_by_expert(uint32_t received,
                                                    const ExpandOptions& expand) const {
  if (expand.rows_max != 0) return expand.rows_max;
  const uint64_t experts = local_experts();
  const uint64_t most =
      received * std::min<uint64_t>(options.topk, experts) + experts * (expand.alignment - 1);
  if (most > std::numeric_limits<int32_t>::max())
    throw InvalidArgument("rows_max", fmt::format("given, since {} rows might come", most), "0");
  return static_cast<uint32_t>(most);
}

RowsByExpert ExpertParallel::Parts::dispatch_by_expert(const DispatchInput& given,
                                                       const ExpandOptions& expand, Stream stream) {
  check();
  check_by_expert(given, expand);
  Dispatching call = prepare(throughput::CallKind::dispatch_by_expert, given, stream);
  Route::State& route = *call.route;
  const throughput::Plan& plan = call.plan;
  DispatchParams& dispatch = call.params;
  dispatch.shares = throughput::share_tokens_in_order(route.tokens, options.topk, plan);
  dispatch.plan = {};
  // So that all ranks find room, or none does, and launch grids of one shape.
  DispatchParams widest = dispatch;
  widest.local_experts = partition.held_at_most();
  dispatch.plan =
      rings_beside(sizeof(throughput::DispatchShared), ByExpertTail::of(widest, plan.warps).bytes(),
                   dispatch.row_bytes, plan.movers);
  widest.plan = dispatch.plan;
  ExpertRowsLayout layout{.rows = most_rows_by_expert(route.rows, expand),
                          .received = route.rows,
                          .topk = options.topk,
                          .local_experts = local_experts(),
                          .row_bytes = dispatch.row_bytes,
                          .scale_words = call.input.format.scale_words,
                          .scale_order = expand.scale_order};
  const std::shared_ptr<CallMemory> memory = reserve(layout.bytes(), stream);
  const ByExpertParams params{.dispatch = dispatch,
                              .senders = throughput::choose_senders(world.size(), plan.blocks),
                              .alignment = expand.alignment,
                              .clear_padding = expand.clear_padding,
                              .to = memory->block().data(),
                              .layout = layout};
  run(call, [&] {
    launch(accelerator_, expert_major::dispatch_by_expert_kernel,
           {.blocks = plan.blocks,
            .warps = plan.warps,
            .extra_shared_bytes = ByExpertTail::of(widest, plan.warps).bytes(),
            .overlap_previous = true},
           stream, params);
  });
  RowsByExpert by_expert;
  by_expert.received =
      received(call.route, call.input.format, route.layout, call.rows, dispatch.readiness, nullptr);
  by_expert.received.x = nullptr;
  by_expert.received.scales = nullptr;
  by_expert.rows = count_rows(route, expand);
  if (expand.rows_max != 0 || !call.waits()) by_expert.rows.rows = layout.rows;
  memory->block().trim(layout.bytes_with(by_expert.rows.rows));
  fill_in(by_expert.rows, layout, by_expert.received, memory);
  return by_expert;
}

}  // namespace tokenyard
