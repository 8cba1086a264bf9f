#include "expert_parallel/throughput/host/combiner.hpp"

#include <fmt/format.h>

#include "base/tensor_arguments.hpp"
#include "expert_parallel/by_expert/reduce_rows.hpp"

namespace tokenyard::throughput {

namespace {

void require_summable(const char* argument, DataType type) {
  if (type != DataType::bfloat16 && type != DataType::float16 && type != DataType::float32)
    throw InvalidArgument(argument, "bfloat16, float16 or float32, which can be summed",
                          name_of(type));
}

/// Requires both or neither, as far as this rank has rows or tokens.
Weights check_weights(const Route::State& route, const float* weights, const float* out_weights) {
  if (route.rows == 0 && route.tokens == 0) return Weights::either;
  if (weights == nullptr && out_weights == nullptr) return Weights::without;
  if (weights == nullptr && route.rows > 0)
    throw InvalidArgument("topk_weights", "a pointer, since out_topk_weights is given",
                          "a null pointer");
  if (out_weights == nullptr && route.tokens > 0)
    throw InvalidArgument("out_topk_weights", "a pointer, since topk_weights is given",
                          "a null pointer");
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

CombineArguments Combiner::checked(const CombineInput& input, const Route::State& route,
                                   const CombineOutput& output) const {
  if (input.by_expert != nullptr &&
      (!input.by_expert->route || RouteAccess::state_of(*input.by_expert->route).get() != &route))
    throw InvalidArgument("by_expert", "rows of this route", "rows of another route");
  if (input.weighted && input.by_expert == nullptr)
    throw InvalidArgument("weighted", "results by expert", "one result per received row");
  const uint64_t rows = input.by_expert != nullptr ? input.by_expert->rows : route.rows;
  // A rank that has neither rows nor tokens may give nothing.
  const DataType type = input.y.given()    ? input.y.type
                        : output.x.given() ? output.x.type
                                           : DataType::bfloat16;
  require_summable("y", type);
  const uint64_t hidden = setup_.options.hidden, topk = setup_.options.topk;
  const uint64_t row_bytes = setup_.row_bytes({.type = type});
  require_view("y", input.y, {type}, {rows, hidden}, kRowAlignment);
  require_view("out", output.x, {type}, {route.tokens, hidden}, kRowAlignment);
  require_no_overlap("out", output.x.data, output.x.bytes(), "y", input.y.data, input.y.bytes());
  for (const ConstTensorView& bias : input.biases)
    if (bias.given()) require_view("biases", bias, {type}, {route.tokens, hidden}, kRowAlignment);
  if (input.rank_order.given())
    require_view("rank_order", input.rank_order, {DataType::uint32, DataType::int32},
                 {route.tokens, setup_.world.size()}, 4);
  if (input.topk_weights.given())
    require_view("topk_weights", input.topk_weights, {DataType::float32}, {route.rows, topk}, 4);
  if (output.topk_weights.given())
    require_view("out_topk_weights", output.topk_weights, {DataType::float32}, {route.tokens, topk},
                 4);
  setup_.check_sms(input.sms);
  setup_.check_local_sms(input.local_sms, "local_sms");
  const uint64_t home_bytes = route.tokens * row_bytes, choice_bytes = topk * sizeof(float);
  return {.y = memory_for("y", input.y, rows * row_bytes),
          .type = type,
          .by_expert = input.by_expert,
          .weighted = input.weighted,
          .topk_weights = static_cast<const float*>(
              memory_if_given("topk_weights", input.topk_weights, route.rows * choice_bytes)),
          .biases = {memory_if_given("biases", input.biases[0], home_bytes),
                     memory_if_given("biases", input.biases[1], home_bytes)},
          .rank_order = static_cast<const uint32_t*>(
              memory_if_given("rank_order", input.rank_order,
                              uint64_t{route.tokens} * setup_.world.size() * sizeof(uint32_t))),
          .out = memory_for("out", output.x, home_bytes),
          .out_topk_weights = static_cast<float*>(memory_if_given(
              "out_topk_weights", output.topk_weights, route.tokens * choice_bytes)),
          .sms = input.sms,
          .local_sms = input.local_sms};
}

ResultsParams Combiner::results_params(const CombineArguments& input, const Route::State& route,
                                       std::byte* to, uint32_t groups,
                                       const StagePlan& rings) const {
  return {
      .topk = setup_.options.topk,
      .row_bytes = setup_.row_bytes({.type = input.type}),
      .type = element_type_of(input.type),
      .y = static_cast<const std::byte*>(input.y),
      .slots = input.by_expert != nullptr ? input.by_expert->row_of_choice.as<int32_t>() : nullptr,
      .weights = input.weighted ? route.weights() : nullptr,
      .to = to,
      .groups = groups,
      .plan = rings};
}

std::shared_ptr<CallMemory> Combiner::reduce(const CombineArguments& input, const Plan& plan,
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

PreparedRow Combiner::prepared_row(const CombineArguments& input) const {
  if (input.by_expert == nullptr) return kCopiedRow;
  return {results_a_row(setup_.world.size(), setup_.options.topk)};
}

bool Combiner::prepares_beside(const CombineArguments& input, const Plan& plan,
                               const Route::State& route) const {
  if (route.rows == 0 || input.local_sms != 0 || context_.rails) return false;
  if (input.by_expert == nullptr &&
      context_.arena.place_of(input.y, size_t{route.rows} * setup_.row_bytes({.type = input.type})))
    return false;
  return throughput::prepares_beside(setup_.world.size(), plan.blocks, prepared_row(input),
                                     setup_.accelerator.kind());
}

Preparation Combiner::prepare_beside(const CombineArguments& input, const Plan& plan,
                                     const Route::State& route, std::byte* to) const {
  return {
      .blocks = plan.blocks - choose_pullers(setup_.world.size(), plan.blocks, prepared_row(input)),
      .results = results_params(input, route, to, plan.combine_groups, plan.combine),
      .tokens = route.sources(),
      .rows_from = context_.table_of(route).rows_from(),
      .of_own_tokens = input.by_expert != nullptr};
}

void Combiner::combine(const CombineInput& given, const Route& route, const CombineOutput& output,
                       Stream stream) {
  failures_.check();
  context_.check_route(route);
  Route::State& state = *RouteAccess::state_of(route);
  const CombineArguments input = checked(given, state, output);
  const Weights with_weights = check_weights(state, input.topk_weights, input.out_topk_weights);
  const uint32_t bytes = setup_.row_bytes({.type = input.type});
  const Plan plan = setup_.plan_of(bytes, input.sms);
  const RouteTable table = context_.table_of(state);

  state.memory->block().record_stream(stream);
  record_rows(state, input.y, stream);
  if (input.by_expert != nullptr) input.by_expert->record_stream(stream);
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
  call.format = FormatWord::of(element_type_of(input.type), bytes);
  call.rows_at =
      context_.arena.readable_by_peers(y, size_t{state.rows} * bytes, stream, state, copies);
  if (with_weights == Weights::with)
    call.beside_at = context_.arena.readable_by_peers(
        input.topk_weights, size_t{state.rows} * setup_.options.topk * sizeof(float), stream, state,
        copies);
  const CombineParams params{
      .call = call,
      .preparation = preparation,
      .route = table.rows(),
      .order = input.rank_order,
      .biases = {static_cast<const std::byte*>(input.biases[0]),
                 static_cast<const std::byte*>(input.biases[1])},
      .out = static_cast<std::byte*>(input.out),
      .out_weights = input.out_topk_weights,
      .tokens = state.tokens,
      .topk = setup_.options.topk,
      .row_bytes = bytes,
      .ranks_a_step = pulls.ranks_a_step,
      .groups = plan.combine_groups,
      .tokens_kept = share_of_pulls(state.tokens, pulls.pullers * plan.combine_groups, plan),
      .plan = pulls.rings};
  if (context_.rails) context_.rails->check_combine(params);
  failures_.guard(CallKind::combine, [&] {
    if (context_.rails)
      return context_.rails->launch_combine(params, table.rows(), plan.blocks, stream);
    launch(setup_.accelerator, combine_kernel,
           {.blocks = pulls.pullers + preparation.blocks,
            .warps = plan.combine_warps,
            .extra_shared_bytes = CombineTail::of(params).bytes(),
            .overlap_previous = true},
           stream, params);
  });
  failures_.check();
  context_.observation.count_combine(state, bytes);
}

CombineBuffer Combiner::buffer(const Route& route, DataType type, Stream stream) const {
  context_.check_route(route);
  require_summable("type", type);
  const uint32_t rows = RouteAccess::state_of(route)->rows;
  auto memory = context_.arena.reserve(size_t{rows} * setup_.row_bytes({.type = type}), stream);
  void* const data = memory->block().data();
  return {.y = {data, type, {rows, setup_.options.hidden}}, .owner = std::move(memory)};
}

}  // namespace tokenyard::throughput
