#include "expert_parallel/throughput/host/combiner.hpp"

#include <fmt/format.h>

#include "expert_parallel/by_expert/reduce_rows.hpp"
#include "expert_parallel/common/caller_memory.hpp"

namespace tokenyard::throughput {

namespace {

/// Requires both or neither, as far as this rank has rows or tokens.
Weights check_weights(const Route::State& route, const float* weights, const float* out_weights) {
  if (route.rows == 0 && route.tokens == 0) return Weights::either;
  if (weights == nullptr && out_weights == nullptr) return Weights::without;
  if (weights == nullptr && route.rows > 0)
    throw InvalidArgument("weights", "a pointer, since out_weights is given", "a null pointer");
  if (out_weights == nullptr && route.tokens > 0)
    throw InvalidArgument("out_weights", "a pointer, since weights is given", "a null pointer");
  return Weights::with;
}

/// Keeps results that were written in place of their received rows until the combine has read them,
/// even if the caller drops those rows earlier.
void record_rows(const Route::State& route, const void* y, Stream stream) {
  const std::shared_ptr<CallMemory> rows = route.received.lock();
  if (rows == nullptr) return;
  const auto* const at = static_cast<const std::byte*>(y);
  const std::byte* const begin = rows->block().data();
  if (at >= begin && at < begin + rows->block().bytes()) rows->block().record_stream(stream);
}

}  // namespace

void Combiner::check_combine(const CombineInput& input, const Route::State& route,
                             const CombineOutput& output) const {
  if (input.type != ElementType::bf16 && input.type != ElementType::fp16 &&
      input.type != ElementType::fp32)
    throw InvalidArgument("type", "bf16, fp16 or fp32, which can be summed", name_of(input.type));
  const uint64_t bytes = setup_.row_bytes({.type = input.type});
  if (input.by_expert != nullptr &&
      (!input.by_expert->route || input.by_expert->route->state().get() != &route))
    throw InvalidArgument("by_expert", "rows of this route", "rows of another route");
  if (input.weighted && input.by_expert == nullptr)
    throw InvalidArgument("weighted", "results by expert", "one result per received row");
  const uint64_t rows = input.by_expert != nullptr ? input.by_expert->rows : route.rows;
  require_pointer(input.y, "y", rows * bytes, kRowAlignment);
  require_pointer(output.x, "out", route.tokens * bytes, kRowAlignment);
  require_no_overlap("out", output.x, route.tokens * bytes, "y", input.y, rows * bytes);
  for (const void* const bias : input.biases)
    if (bias != nullptr) require_pointer(bias, "biases", route.tokens * bytes, kRowAlignment);
  if (input.rank_order != nullptr)
    require_pointer(input.rank_order, "rank_order", uint64_t{route.tokens} * setup_.world.size(),
                    4);
  setup_.check_sms(input.sms);
  setup_.check_local_sms(input.local_sms, "local_sms");
}

ResultsParams Combiner::results_params(const CombineInput& input, const Route::State& route,
                                       std::byte* to, uint32_t groups,
                                       const StagePlan& rings) const {
  return {.topk = setup_.options.topk,
          .row_bytes = setup_.row_bytes({.type = input.type}),
          .type = input.type,
          .y = static_cast<const std::byte*>(input.y),
          .slots = input.by_expert != nullptr ? input.by_expert->slots : nullptr,
          .weights = input.weighted ? route.weights() : nullptr,
          .to = to,
          .groups = groups,
          .plan = rings};
}

std::shared_ptr<CallMemory> Combiner::reduce(const CombineInput& input, const Plan& plan,
                                             Stream stream, Route::State& route) const {
  const uint32_t bytes = setup_.row_bytes({.type = input.type});
  const std::shared_ptr<CallMemory> sums =
      context_.arena.scratch(size_t{route.rows} * bytes, stream, route);
  const uint32_t taken = (sizeof(expert_major::ReduceShared) + 127) / 128 * 128;
  const SumsPlan shape = plan_sums(bytes, setup_.accelerator.capacity().shared_bytes - taken,
                                   setup_.accelerator.kind());
  launch(setup_.accelerator, expert_major::reduce_rows_kernel,
         {.blocks = input.local_sms != 0 ? input.local_sms : plan.blocks,
          .warps = shape.warps,
          .extra_shared_bytes = shape.groups * shape.rings.stages * shape.rings.stage_bytes,
          .cooperative = false,
          .local = true},
         stream,
         {.results = results_params(input, route, sums->block().data(), shape.groups, shape.rings),
          .rows = route.rows,
          .wait_context = context_.wait_context()});
  return sums;
}

PreparedRow Combiner::prepared_row(const CombineInput& input) const {
  if (input.by_expert == nullptr) return kCopiedRow;
  return {results_a_row(setup_.world.size(), setup_.options.topk)};
}

bool Combiner::prepares_beside(const CombineInput& input, const Plan& plan,
                               const Route::State& route) const {
  if (route.rows == 0 || input.local_sms != 0) return false;
  if (input.by_expert == nullptr &&
      context_.arena.place_of(input.y, size_t{route.rows} * setup_.row_bytes({.type = input.type})))
    return false;
  return throughput::prepares_beside(setup_.world.size(), plan.blocks, prepared_row(input),
                                     setup_.accelerator.kind());
}

Preparation Combiner::prepare_beside(const CombineInput& input, const Plan& plan,
                                     const Route::State& route, std::byte* to) const {
  return {
      .blocks = plan.blocks - choose_pullers(setup_.world.size(), plan.blocks, prepared_row(input)),
      .results = results_params(input, route, to, plan.combine_groups, plan.combine),
      .tokens = route.sources(),
      .rows_from = context_.table_of(route).rows_from(),
      .of_own_tokens = input.by_expert != nullptr};
}

void Combiner::combine(const CombineInput& input, const Route& route, const CombineOutput& output,
                       Stream stream) {
  failures_.check();
  context_.check_route(route);
  Route::State& state = *route.state();
  check_combine(input, state, output);
  const Weights with_weights = check_weights(state, input.weights, output.topk_weights);
  const uint32_t bytes = setup_.row_bytes({.type = input.type});
  const Plan plan = setup_.plan_of(bytes, input.sms);
  const RouteTable table = context_.table_of(state);

  state.memory->block().record_stream(stream);
  record_rows(state, input.y, stream);
  if (input.by_expert != nullptr) input.by_expert->record_stream(stream.native);
  context_.last_stream.begin_call(stream);
  std::vector<std::shared_ptr<CallMemory>> copies;  // Freed in stream order: after the kernel.
  const void* y = input.y;
  const bool comes_later = prepares_beside(input, plan, state);
  Preparation preparation{};
  if (comes_later) {
    copies.push_back(context_.arena.scratch(size_t{state.rows} * bytes, stream, state));
    std::byte* const prepared = copies.back()->block().data();
    preparation = prepare_beside(input, plan, state, prepared);
    y = prepared;
  } else if (input.by_expert != nullptr) {
    copies.push_back(reduce(input, plan, stream, state));
    y = copies.back()->block().data();
  }
  const PullPlan pulls = plan_pulls(plan, setup_.world.size(), plan.blocks - preparation.blocks,
                                    setup_.accelerator.kind());
  CallParams call = context_.params(CallKind::combine);
  call.weights = with_weights;
  call.comes_later = comes_later;
  call.route = &table.epoch();
  call.format = FormatWord::of(input.type, bytes);
  call.rows_at =
      context_.arena.readable_by_peers(y, size_t{state.rows} * bytes, stream, state, copies);
  if (with_weights == Weights::with)
    call.beside_at = context_.arena.readable_by_peers(
        input.weights, size_t{state.rows} * setup_.options.topk * sizeof(float), stream, state,
        copies);
  const CombineParams params{
      .call = call,
      .preparation = preparation,
      .route = table.rows(),
      .order = input.rank_order,
      .biases = {static_cast<const std::byte*>(input.biases[0]),
                 static_cast<const std::byte*>(input.biases[1])},
      .out = static_cast<std::byte*>(output.x),
      .out_weights = output.topk_weights,
      .tokens = state.tokens,
      .topk = setup_.options.topk,
      .row_bytes = bytes,
      .ranks_a_step = pulls.ranks_a_step,
      .groups = plan.combine_groups,
      .tokens_kept = share_of_pulls(state.tokens, pulls.pullers * plan.combine_groups, plan),
      .plan = pulls.rings};
  failures_.guard([&] {
    launch(setup_.accelerator, combine_kernel,
           {.blocks = pulls.pullers + preparation.blocks,
            .warps = plan.combine_warps,
            .extra_shared_bytes = CombineTail::of(params).bytes(),
            .overlap_previous = true},
           stream, params);
  });
  failures_.check();
}

std::shared_ptr<void> Combiner::output_buffer(const Route& route, ElementType type,
                                              Stream stream) const {
  context_.check_route(route);
  auto memory = context_.arena.reserve(
      size_t{route.state()->rows} * setup_.row_bytes({.type = type}), stream);
  void* const data = memory->block().data();
  return {std::move(memory), data};
}

}  // namespace tokenyard::throughput
