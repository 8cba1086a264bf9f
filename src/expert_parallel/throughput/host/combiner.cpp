/// One combine, from the host's side.
#include "expert_parallel/throughput/host/route_state.hpp"

namespace tokenyard {

using throughput::CombineParams;
using throughput::kOffsetUnit;
using throughput::Weights;

namespace {

/// Both or neither, where there is anything to give or to take.
Weights check_weights(const Route::State& route, const float* weights, const float* out_weights) {
  if (route.rows == 0 && route.tokens == 0) return Weights::either;
  if (weights == nullptr && out_weights == nullptr) return Weights::without;
  if (weights == nullptr && route.rows > 0)
    throw InvalidArgument("weights", "given, since out_weights are", "a null pointer");
  if (out_weights == nullptr && route.tokens > 0)
    throw InvalidArgument("out_weights", "given, since weights are", "a null pointer");
  return Weights::with;
}

/// Results that were written where their rows came to are read there, whoever drops these rows
/// before the combine has ended.
void record_rows(const Route::State& route, const void* y, Stream stream) {
  const std::shared_ptr<CallMemory> rows = route.received.lock();
  if (rows == nullptr) return;
  const auto* const at = static_cast<const std::byte*>(y);
  const std::byte* const begin = rows->block().data();
  if (at >= begin && at < begin + rows->block().bytes()) rows->block().record_stream(stream);
}

}  // namespace

std::optional<uint32_t> ExpertParallel::Parts::place_in_arena(const void* data,
                                                              size_t bytes) const {
  if (bytes == 0) return 0;
  const auto address = reinterpret_cast<uintptr_t>(data);
  const auto base = reinterpret_cast<uintptr_t>(arena_.base());
  const bool inside = address >= base && address + bytes <= base + arena_.capacity();
  if (!inside || (address - base) % kOffsetUnit != 0) return std::nullopt;
  return static_cast<uint32_t>((address - base) / kOffsetUnit);
}

uint32_t ExpertParallel::Parts::readable_by_peers(
    const void* data, size_t bytes, Stream stream, Route::State& route,
    std::vector<std::shared_ptr<CallMemory>>& copies) {
  if (const auto place = place_in_arena(data, bytes)) return *place;
  copies.push_back(scratch(bytes, stream, route));
  ArenaBlock& copy = copies.back()->block();
  accelerator_.copy(copy.data(), data, bytes, stream);
  return static_cast<uint32_t>(copy.offset() / kOffsetUnit);
}

throughput::PreparedRow ExpertParallel::Parts::prepared_row(const CombineInput& input) const {
  if (input.by_expert == nullptr) return throughput::kCopiedRow;
  return {throughput::results_a_row(world.size(), options.topk)};
}

bool ExpertParallel::Parts::prepares_beside(const CombineInput& input, const throughput::Plan& plan,
                                            const Route::State& route) const {
  if (route.rows == 0 || input.local_sms != 0) return false;
  if (input.by_expert == nullptr &&
      place_in_arena(input.y, size_t{route.rows} * row_bytes({.type = input.type})))
    return false;
  return throughput::prepares_beside(world.size(), plan.blocks, prepared_row(input),
                                     accelerator_.kind());
}

throughput::Preparation ExpertParallel::Parts::prepare_beside(const CombineInput& input,
                                                              const throughput::Plan& plan,
                                                              const Route::State& route,
                                                              std::byte* to) const {
  return {.blocks = plan.blocks -
                    throughput::choose_pullers(world.size(), plan.blocks, prepared_row(input)),
          .results = results_params(input, route, to, plan.combine_groups, plan.combine),
          .tokens = route.sources(),
          .rows_from = table_of(route).rows_from(),
          .of_own_tokens = input.by_expert != nullptr};
}

void ExpertParallel::Parts::combine(const CombineInput& input, const Route& route,
                                    const CombineOutput& output, Stream stream) {
  check();
  check_route(route);
  Route::State& state = *route.state();
  check_combine(input, state, output);
  const Weights with_weights = check_weights(state, input.weights, output.topk_weights);
  const uint32_t bytes = row_bytes({.type = input.type});
  const throughput::Plan plan = plan_of(bytes, input.sms);
  const throughput::RouteTable table = table_of(state);

  state.memory->block().record_stream(stream);
  record_rows(state, input.y, stream);
  if (input.by_expert != nullptr) input.by_expert->record_stream(stream.native);
  last_stream_.begin_call(stream);
  std::vector<std::shared_ptr<CallMemory>> copies;  // Freed in stream order: after the kernel.
  const void* y = input.y;
  const bool comes_later = prepares_beside(input, plan, state);
  throughput::Preparation preparation{};
  if (comes_later) {
    copies.push_back(scratch(size_t{state.rows} * bytes, stream, state));
    std::byte* const prepared = copies.back()->block().data();
    preparation = prepare_beside(input, plan, state, prepared);
    y = prepared;
  } else if (input.by_expert != nullptr) {
    copies.push_back(reduce(input, plan, stream, state));
    y = copies.back()->block().data();
  }
  const throughput::PullPlan pulls = throughput::plan_pulls(
      plan, world.size(), plan.blocks - preparation.blocks, accelerator_.kind());
  throughput::CallParams call = call_params(throughput::CallKind::combine);
  call.weights = with_weights;
  call.comes_later = comes_later;
  call.route = &table.epoch();
  call.format = throughput::FormatWord::of(input.type, bytes);
  call.rows_at = readable_by_peers(y, size_t{state.rows} * bytes, stream, state, copies);
  if (with_weights == Weights::with)
    call.beside_at = readable_by_peers(
        input.weights, size_t{state.rows} * options.topk * sizeof(float), stream, state, copies);
  const CombineParams params{.call = call,
                             .preparation = preparation,
                             .route = table.rows(),
                             .order = input.rank_order,
                             .biases = {static_cast<const std::byte*>(input.biases[0]),
                                        static_cast<const std::byte*>(input.biases[1])},
                             .out = static_cast<std::byte*>(output.x),
                             .out_weights = output.topk_weights,
                             .tokens = state.tokens,
                             .topk = options.topk,
                             .row_bytes = bytes,
                             .ranks_a_step = pulls.ranks_a_step,
                             .groups = plan.combine_groups,
                             .tokens_kept = throughput::share_of_pulls(
                                 state.tokens, pulls.pullers * plan.combine_groups, plan),
                             .plan = pulls.rings};
  guard([&] {
    launch(accelerator_, throughput::combine_kernel,
           {.blocks = pulls.pullers + preparation.blocks,
            .warps = plan.combine_warps,
            .extra_shared_bytes = throughput::CombineTail::of(params).bytes(),
            .overlap_previous = true},
           stream, params);
  });
  check();
}

std::shared_ptr<void> ExpertParallel::Parts::output_buffer(const Route& route, ElementType type,
                                                           Stream stream) {
  check_route(route);
  auto memory = reserve(size_t{route.state()->rows} * row_bytes({.type = type}), stream);
  void* const data = memory->block().data();
  return {std::move(memory), data};
}

}  // namespace tokenyard
