#include "expert_parallel/throughput/host/grouper.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "expert_parallel/by_expert/dispatch_by_expert.hpp"
#include "expert_parallel/by_expert/expand_rows.hpp"
#include "expert_parallel/throughput/host/dispatch_arguments.hpp"
#include "expert_parallel/throughput/kernels/dispatch_shared.hpp"

namespace tokenyard::throughput {

using expert_major::ByExpertParams;
using expert_major::ByExpertTail;
using expert_major::ExpertRowsLayout;

namespace {

/// Returns the first row of each expert and the number of rows, as far as the host knows them.
/// Throws InvalidArgument if rows_max is smaller.
ExpertRows count_rows(const Route::State& route, const GroupByExpertOptions& expand) {
  ExpertRows rows;
  uint64_t all = 0;
  for (const uint64_t tokens : route.tokens_per_expert) {
    rows.first_rows.push_back(static_cast<uint32_t>(all));
    all += (tokens + expand.alignment - 1) / expand.alignment * expand.alignment;
    if (all > INT32_MAX)
      throw InvalidArgument("alignment", fmt::format("at most {} rows in all", INT32_MAX),
                            std::to_string(all));
  }
  rows.rows = static_cast<uint32_t>(all);
  if (route.places == 0) rows.first_rows.push_back(rows.rows);
  if (expand.rows_max != 0 && rows.rows > expand.rows_max)
    throw InvalidArgument("rows_max", fmt::format("places for {} rows", rows.rows),
                          std::to_string(expand.rows_max));
  return rows;
}

void fill_in(ExpertRows& rows, const ExpertRowsLayout& layout, const Received& received,
             uint32_t hidden, const std::shared_ptr<CallMemory>& memory) {
  std::byte* const to = memory->block().data();
  rows.format = received.format;
  rows.format.scale_order = layout.scale_order;
  rows.x = rows_at(to + layout.x_at(), rows.rows, rows.format, hidden);
  rows.scales = scales_at(to + layout.scales_at(), rows.rows, rows.format, layout.scale_stride());
  rows.offsets = {to + layout.offsets_at(), DataType::int32, {layout.local_experts + 1}};
  rows.row_of = {to + layout.row_of_at(), DataType::int32, {rows.rows}};
  rows.weights = {to + layout.weights_at(), DataType::float32, {rows.rows}};
  rows.row_of_choice = {to + layout.slots_at(), DataType::int32, {layout.received, layout.topk}};
  rows.route = received.route;
  rows.rows_owner = memory->split(layout.scales_at());
  rows.owner = memory;
}

}  // namespace

void Grouper::check_grouping(const GroupByExpertOptions& expand) const {
  // Half of the row numbers for rows, half for padding. Computed for the ranks with most experts,
  // so that all ranks agree.
  const uint32_t alignment_max = INT32_MAX / 2 / setup_.partition.held_at_most();
  if (expand.alignment == 0 || expand.alignment > alignment_max)
    throw InvalidArgument("alignment", fmt::format("1 to {}", alignment_max),
                          std::to_string(expand.alignment));
  if (expand.rows_max > INT32_MAX)
    throw InvalidArgument("rows_max", fmt::format("at most {}", INT32_MAX),
                          std::to_string(expand.rows_max));
}

void Grouper::check_expand(const Received& received, const GroupByExpertOptions& expand) const {
  if (!received.route)
    throw InvalidArgument("received", "the result of a dispatch", "an empty Received");
  context_.check_route(*received.route);
  check_grouping(expand);
  if (received.rows > 0 && !received.x.given())
    throw InvalidArgument("received", "rows in the order in which they came", "none");
  if (received.format.scale_words != 0 && received.format.scale_order != ScaleOrder::rows)
    throw InvalidArgument("received", "scales in row order", "scales in column order");
  if (RouteAccess::state_of(*received.route)->places != 0 && expand.rows_max == 0)
    throw InvalidArgument("rows_max", "a bound, since the host has not read the counts", "0");
  setup_.check_local_sms(expand.sms, "sms");
}

DispatchArguments Grouper::checked_by_expert(const DispatchInput& input,
                                             const GroupByExpertOptions& expand) const {
  DispatchArguments arguments = checked_dispatch(setup_, input);
  check_grouping(expand);
  if (input.watcher)
    throw InvalidArgument("watcher", "none for rows grouped as they arrive", "a stream");
  if (input.scale_order != ScaleOrder::rows)
    throw InvalidArgument("scale_order", "rows: scales travel in row order here", "columns");
  return arguments;
}

StagePlan Grouper::rings_beside(size_t shared_bytes, size_t tail_bytes, uint32_t row_bytes,
                                uint32_t movers) const {
  const size_t all = setup_.accelerator.capacity().shared_bytes;
  const size_t taken = (shared_bytes + 127) / 128 * 128 + (tail_bytes + 127) / 128 * 128;
  const StagePlan rings = plan_rings(row_bytes, static_cast<uint32_t>(all - std::min(taken, all)),
                                     movers, setup_.accelerator.kind());
  if (rings.stages == 0)
    throw InvalidArgument("experts", "few enough for their counters to fit in shared memory",
                          fmt::format("{} on this rank", setup_.local_experts()));
  return rings;
}

ExpertRowsLayout Grouper::layout_of(uint32_t rows, uint32_t received, const RowFormat& format,
                                    const GroupByExpertOptions& expand) const {
  return {.rows = rows,
          .received = received,
          .topk = setup_.options.topk,
          .local_experts = setup_.local_experts(),
          .row_bytes = setup_.row_bytes(format),
          .scale_words = format.scale_words,
          .scale_order = expand.scale_order};
}

uint32_t Grouper::most_rows_by_expert(uint32_t received, const GroupByExpertOptions& expand) const {
  if (expand.rows_max != 0) return expand.rows_max;
  const uint64_t experts = setup_.local_experts();
  const uint64_t most = received * std::min<uint64_t>(setup_.options.topk, experts) +
                        experts * (expand.alignment - 1);
  if (most > std::numeric_limits<int32_t>::max())
    throw InvalidArgument("rows_max", fmt::format("a bound, since {} rows may arrive", most), "0");
  return static_cast<uint32_t>(most);
}

ExpertRows Grouper::group_by_expert(const Received& received, const GroupByExpertOptions& expand,
                                    Stream stream) {
  failures_.check();
  check_expand(received, expand);
  Route::State& route = *RouteAccess::state_of(*received.route);
  ExpertRows rows = count_rows(route, expand);
  if (expand.rows_max != 0) rows.rows = expand.rows_max;
  const uint32_t bytes = setup_.row_bytes(received.format);
  const ExpertRowsLayout layout = layout_of(rows.rows, received.rows, received.format, expand);
  const Plan shape = setup_.plan_of(bytes, expand.sms);
  const auto tail_of = [&](const StagePlan& plan) {
    return expert_major::ExpandTail::of(shape.warps, setup_.local_experts(), shape.movers, plan);
  };
  const StagePlan rings =
      rings_beside(sizeof(expert_major::ExpandShared), tail_of({}).bytes(), bytes, shape.movers);
  const std::shared_ptr<CallMemory> memory = context_.arena.reserve(layout.bytes(), stream);
  context_.last_stream.begin_call(stream);
  received.record_stream(stream);
  launch(setup_.accelerator, expert_major::expand_rows_kernel,
         {.blocks = shape.blocks,
          .warps = shape.warps,
          .extra_shared_bytes = tail_of(rings).bytes(),
          .cooperative = false,
          .overlap_previous = true,
          .local = true},
         stream,
         {.grouping = {.topk = setup_.options.topk,
                       .alignment = expand.alignment,
                       .clear_padding = expand.clear_padding,
                       .scales = received.scales.as<uint32_t>(),
                       .ids = received.topk_idx.as<int32_t>(),
                       .weights = received.topk_weights.as<float>(),
                       .to = memory->block().data(),
                       .layout = layout},
          .rows = received.rows,
          .x = received.x.as<std::byte>(),
          .tokens_per_expert = received.tokens_per_expert_on_device.as<uint32_t>(),
          .movers = shape.movers,
          .plan = rings,
          .wait_context = context_.wait_context()});
  fill_in(rows, layout, received, setup_.options.hidden, memory);
  return rows;
}

RowsByExpert Grouper::dispatch_then_group(const DispatchInput& input,
                                          const GroupByExpertOptions& expand, Stream stream) {
  Received received = dispatcher_.dispatch(input, stream);
  ExpertRows rows = group_by_expert(received, expand, stream);
  received.x = received.scales = {};
  received.owner.reset();
  return {.received = std::move(received), .rows = std::move(rows)};
}

RowsByExpert Grouper::dispatch_by_expert(const DispatchInput& input,
                                         const GroupByExpertOptions& expand, Stream stream) {
  failures_.check();
  const DispatchArguments given = checked_by_expert(input, expand);
  if (context_.rails) return dispatch_then_group(input, expand, stream);
  PreparedDispatch call = dispatcher_.prepare(CallKind::dispatch_by_expert, given, stream);
  Route::State& route = *call.route;
  const Plan& plan = call.plan;
  DispatchParams& dispatch = call.params;
  dispatch.shares = share_tokens_in_order(route.tokens, setup_.options.topk, plan);
  dispatch.plan = {};
  // Computed for the ranks with most experts, so that rings fit on all ranks or on none, and all
  // launch grids of one shape.
  DispatchParams widest = dispatch;
  widest.local_experts = setup_.partition.held_at_most();
  dispatch.plan = rings_beside(sizeof(DispatchShared), ByExpertTail::of(widest, plan.warps).bytes(),
                               dispatch.row_bytes, plan.movers);
  widest.plan = dispatch.plan;
  const ExpertRowsLayout layout =
      layout_of(most_rows_by_expert(route.rows, expand), route.rows, call.input.format, expand);
  const std::shared_ptr<CallMemory> memory = context_.arena.reserve(layout.bytes(), stream);
  const ByExpertParams params{.dispatch = dispatch,
                              .senders = choose_senders(setup_.world.size(), plan.blocks),
                              .alignment = expand.alignment,
                              .clear_padding = expand.clear_padding,
                              .to = memory->block().data(),
                              .layout = layout};
  dispatcher_.run(call, [&] {
    launch(setup_.accelerator, expert_major::dispatch_by_expert_kernel,
           {.blocks = plan.blocks,
            .warps = plan.warps,
            .extra_shared_bytes = ByExpertTail::of(widest, plan.warps).bytes(),
            .overlap_previous = true},
           stream, params);
  });
  context_.observation.count_dispatch(route, setup_.bytes_sent_per_row(call.input.format));
  RowsByExpert by_expert;
  by_expert.received =
      dispatcher_.received(call.route, call.input.format, route.layout, call.rows, {});
  by_expert.received.x = {};
  by_expert.received.scales = {};
  by_expert.rows = count_rows(route, expand);
  if (expand.rows_max != 0 || !call.waits()) by_expert.rows.rows = layout.rows;
  memory->block().trim(layout.bytes_with(by_expert.rows.rows));
  fill_in(by_expert.rows, layout, by_expert.received, setup_.options.hidden, memory);
  return by_expert;
}

}  // namespace tokenyard::throughput
