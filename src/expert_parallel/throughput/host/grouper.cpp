/// Parts of calls that need no other rank: rows cast before they travel, grouped by expert after,
/// and results summed to one a row before they go home.
#include <fmt/format.h>

#include <bit>

#include "expert_parallel/by_expert/expand_rows.hpp"
#include "expert_parallel/by_expert/reduce_rows.hpp"
#include "expert_parallel/throughput/host/route_state.hpp"
#include "expert_parallel/throughput/kernels/cast_rows.hpp"

namespace tokenyard {

using expert_major::ExpertRowsLayout;

std::shared_ptr<CallMemory> ExpertParallel::Parts::scratch(size_t bytes, Stream stream,
                                                           Route::State& route) {
  std::shared_ptr<CallMemory> memory = reserve(bytes, stream);
  keep_captured(memory, stream, route);
  return memory;
}

RowFormat ExpertParallel::Parts::check_cast(const DispatchInput& input) const {
  const uint32_t channels = input.cast.channels;
  if (input.format.type != ElementType::bf16)
    throw InvalidArgument("as_fp8", "rows of bf16", name_of(input.format.type));
  if (input.format.scale_words != 0)
    throw InvalidArgument("scales", "none beside rows that are cast here",
                          fmt::format("{} words", input.format.scale_words));
  if (!std::has_single_bit(channels) || channels < 16 || channels > 512 ||
      options.hidden % channels != 0)
    throw InvalidArgument("scale_channels",
                          fmt::format("16, 32, ... 512 that divides hidden = {}", options.hidden),
                          std::to_string(channels));
  const uint32_t groups = options.hidden / channels;
  const bool packed = input.cast.scales == CastToFp8::Scales::packed;
  return {.type = ElementType::fp8_e4m3,
          .row_bytes = 0,
          .scale_words = packed ? (groups + 3) / 4 : groups,
          .scale_order = input.format.scale_order,
          .scale_type = packed ? ScaleType::int32 : ScaleType::fp32};
}

DispatchInput ExpertParallel::Parts::cast(const DispatchInput& input, const throughput::Plan& plan,
                                          Stream stream, Route::State& route,
                                          std::shared_ptr<CallMemory>& made) {
  if (input.cast.scales == CastToFp8::Scales::none) return input;
  DispatchInput as_fp8 = input;
  as_fp8.format = check_cast(input);
  const size_t x_bytes = size_t{input.tokens} * options.hidden;
  const size_t scales_at = (x_bytes + 15) / 16 * 16;
  made = scratch(scales_at + size_t{input.tokens} * as_fp8.format.scale_words * 4, stream, route);
  std::byte* const to = made->block().data();
  as_fp8.x = to;
  as_fp8.scales = to + scales_at;
  launch(accelerator_, throughput::cast_rows_kernel,
         {.blocks = plan.blocks, .warps = plan.warps, .cooperative = false, .local = true}, stream,
         {.tokens = input.tokens,
          .hidden = options.hidden,
          .scale_channels = input.cast.channels,
          .packed = input.cast.scales == CastToFp8::Scales::packed,
          .scale_words = as_fp8.format.scale_words,
          .x = static_cast<const std::byte*>(input.x),
          .to = to,
          .scales = to + scales_at,
          .patience = health_->cell.patience(world.timeout())});
  return as_fp8;
}

void ExpertParallel::Parts::check_grouping(const ExpandOptions& expand) const {
  // Half of the numbers for rows, half for padding. Of the rank with most experts, so that all
  // agree.
  const uint32_t alignment_max = INT32_MAX / 2 / partition.held_at_most();
  if (expand.alignment == 0 || expand.alignment > alignment_max)
    throw InvalidArgument("alignment", fmt::format("1 to {}", alignment_max),
                          std::to_string(expand.alignment));
  if (expand.rows_max > INT32_MAX)
    throw InvalidArgument("rows_max", fmt::format("at most {}", INT32_MAX),
                          std::to_string(expand.rows_max));
}

void ExpertParallel::Parts::check_expand(const Received& received,
                                         const ExpandOptions& expand) const {
  if (!received.route)
    throw InvalidArgument("received", "what a dispatch brought", "an empty Received");
  check_route(*received.route);
  check_grouping(expand);
  if (received.format.scale_words != 0 && received.format.scale_order != ScaleOrder::rows)
    throw InvalidArgument("received", "scales by rows", "scales by columns");
  if (received.route->state()->places != 0 && expand.rows_max == 0)
    throw InvalidArgument("rows_max", "given, since no host has waited for the counts", "0");
  check_local_sms(expand.sms, "sms");
}

ExpertRows ExpertParallel::Parts::expand(const Received& received, const ExpandOptions& expand,
                                         Stream stream) {
  check();
  check_expand(received, expand);
  Route::State& route = *received.route->state();
  ExpertRows rows = count_rows(route, expand);
  if (expand.rows_max != 0) rows.rows = expand.rows_max;
  const uint32_t bytes = row_bytes(received.format);
  const ExpertRowsLayout layout{.rows = rows.rows,
                                .received = received.rows,
                                .topk = options.topk,
                                .local_experts = local_experts(),
                                .row_bytes = bytes,
                                .scale_words = received.format.scale_words,
                                .scale_order = expand.scale_order};
  const throughput::Plan shape = plan_of(bytes, expand.sms);
  const auto tail_of = [&](const throughput::StagePlan& plan) {
    return expert_major::ExpandTail::of(shape.warps, local_experts(), shape.movers, plan);
  };
  const throughput::StagePlan rings =
      rings_beside(sizeof(expert_major::ExpandShared), tail_of({}).bytes(), bytes, shape.movers);
  const std::shared_ptr<CallMemory> memory = reserve(layout.bytes(), stream);
  last_stream_.begin_call(stream);
  received.record_stream(stream.native);
  launch(accelerator_, expert_major::expand_rows_kernel,
         {.blocks = shape.blocks,
          .warps = shape.warps,
          .extra_shared_bytes = tail_of(rings).bytes(),
          .cooperative = false,
          .overlap_previous = true,
          .local = true},
         stream,
         {.grouping = {.topk = options.topk,
                       .alignment = expand.alignment,
                       .clear_padding = expand.clear_padding,
                       .scales = static_cast<const uint32_t*>(received.scales),
                       .ids = received.topk_idx,
                       .weights = received.topk_weights,
                       .to = memory->block().data(),
                       .layout = layout},
          .rows = received.rows,
          .x = static_cast<const std::byte*>(received.x),
          .tokens_per_expert = received.tokens_per_expert_on_device,
          .movers = shape.movers,
          .plan = rings,
          .patience = health_->cell.patience(world.timeout())});
  fill_in(rows, layout, received, memory);
  return rows;
}

ExpertRows ExpertParallel::Parts::count_rows(const Route::State& route,
                                             const ExpandOptions& expand) {
  ExpertRows rows;
  uint64_t all = 0;
  for (const uint64_t tokens : route.tokens_per_expert) {
    rows.first_rows.push_back(static_cast<uint32_t>(all));
    all += (tokens + expand.alignment - 1) / expand.alignment * expand.alignment;
    if (all > INT32_MAX)
      throw InvalidArgument("alignment", fmt::format("{} rows in all at most", INT32_MAX),
                            std::to_string(all));
  }
  rows.rows = static_cast<uint32_t>(all);
  if (route.places == 0) rows.first_rows.push_back(rows.rows);
  if (expand.rows_max != 0 && rows.rows > expand.rows_max)
    throw InvalidArgument("rows_max", fmt::format("places for {} rows", rows.rows),
                          std::to_string(expand.rows_max));
  return rows;
}

throughput::StagePlan ExpertParallel::Parts::rings_beside(size_t shared_bytes, size_t tail_bytes,
                                                          uint32_t row_bytes,
                                                          uint32_t movers) const {
  const size_t all = accelerator_.capacity().shared_bytes;
  const size_t taken = (shared_bytes + 127) / 128 * 128 + (tail_bytes + 127) / 128 * 128;
  const throughput::StagePlan rings = throughput::plan_rings(
      row_bytes, static_cast<uint32_t>(all - std::min(taken, all)), movers, accelerator_.kind());
  if (rings.stages == 0)
    throw InvalidArgument("experts", "counters for them in a block's shared memory",
                          fmt::format("{} on a rank", local_experts()));
  return rings;
}

void ExpertParallel::Parts::fill_in(ExpertRows& rows, const ExpertRowsLayout& layout,
                                    const Received& received,
                                    const std::shared_ptr<CallMemory>& memory) const {
  std::byte* const to = memory->block().data();
  rows.x = to + layout.x_at();
  rows.format = received.format;
  rows.format.scale_order = layout.scale_order;
  rows.scales = layout.scale_words == 0 ? nullptr : to + layout.scales_at();
  rows.scale_stride = layout.scale_stride();
  rows.offsets = reinterpret_cast<const int32_t*>(to + layout.offsets_at());
  rows.row_of = reinterpret_cast<const int32_t*>(to + layout.row_of_at());
  rows.weights = reinterpret_cast<const float*>(to + layout.weights_at());
  rows.slots = reinterpret_cast<const int32_t*>(to + layout.slots_at());
  rows.route = received.route;
  rows.rows_owner = memory->split(layout.scales_at());
  rows.owner = memory;
}

throughput::ResultsParams ExpertParallel::Parts::results_params(
    const CombineInput& input, const Route::State& route, std::byte* to, uint32_t groups,
    const throughput::StagePlan& rings) const {
  return {.topk = options.topk,
          .row_bytes = row_bytes({.type = input.type}),
          .type = input.type,
          .y = static_cast<const std::byte*>(input.y),
          .slots = input.by_expert != nullptr ? input.by_expert->slots : nullptr,
          .weights = input.weighted ? route.weights() : nullptr,
          .to = to,
          .groups = groups,
          .plan = rings};
}

std::shared_ptr<CallMemory> ExpertParallel::Parts::reduce(const CombineInput& input,
                                                          const throughput::Plan& plan,
                                                          Stream stream, Route::State& route) {
  const uint32_t bytes = row_bytes({.type = input.type});
  const std::shared_ptr<CallMemory> sums = scratch(size_t{route.rows} * bytes, stream, route);
  const uint32_t taken = (sizeof(expert_major::ReduceShared) + 127) / 128 * 128;
  const throughput::SumsPlan shape = throughput::plan_sums(
      bytes, accelerator_.capacity().shared_bytes - taken, accelerator_.kind());
  launch(accelerator_, expert_major::reduce_rows_kernel,
         {.blocks = input.local_sms != 0 ? input.local_sms : plan.blocks,
          .warps = shape.warps,
          .extra_shared_bytes = shape.groups * shape.rings.stages * shape.rings.stage_bytes,
          .cooperative = false,
          .local = true},
         stream,
         {.results = results_params(input, route, sums->block().data(), shape.groups, shape.rings),
          .rows = route.rows,
          .patience = health_->cell.patience(world.timeout())});
  return sums;
}

ExpertParallel::Memory ExpertParallel::Parts::memory(const RowFormat& format, uint32_t tokens,
                                                     uint32_t rows) const {
  throughput::ReceivedLayout layout{.rows = world.size() * options.tokens_max,
                                    .row_bytes = row_bytes(format),
                                    .topk = options.topk,
                                    .scale_words = format.scale_words,
                                    .scale_order = format.scale_order};
  const throughput::RouteTable table{
      .base = nullptr, .ranks = world.size(), .local_experts = local_experts()};
  const auto pieces = [](size_t bytes) {
    return (std::max<size_t>(bytes, 1) + throughput::kOffsetUnit - 1) / throughput::kOffsetUnit *
           throughput::kOffsetUnit;
  };
  ExpertParallel::Memory memory;
  memory.object = pieces(window_.bytes());
  const auto of_route = [&] { return pieces(layout.beside_bytes() + table.bytes(tokens)); };
  memory.peak = pieces(layout.bytes()) + of_route();
  layout.rows = rows;
  memory.kept_by_route = of_route();
  memory.kept = pieces(layout.bytes()) + memory.kept_by_route;
  return memory;
}

}  // namespace tokenyard
