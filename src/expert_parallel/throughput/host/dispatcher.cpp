/// One dispatch, from the host's side.
#include <algorithm>
#include <numeric>

#include "expert_parallel/throughput/host/route_state.hpp"

namespace tokenyard {

using throughput::CallKind;
using throughput::DispatchParams;

namespace {

/// Where a piece of the arena begins, as peers are told.
uint32_t units_of(CallMemory& memory) {
  return static_cast<uint32_t>(memory.block().offset() / throughput::kOffsetUnit);
}

/// Of the last word of packed scales, where rows are cast.
uint32_t exponents_unused(const DispatchInput& input, uint32_t hidden) {
  if (input.cast.scales != CastToFp8::Scales::packed) return 0;
  return 4 * input.format.scale_words - hidden / input.cast.channels;
}

}  // namespace

std::shared_ptr<CallMemory> ExpertParallel::Parts::reserve(size_t bytes, Stream stream,
                                                           ArenaEnd end) {
  // A call's memory has a place, even where nothing will come.
  constexpr size_t kLeast = throughput::kOffsetUnit;
  return std::make_shared<CallMemory>(arena_.allocate(std::max(bytes, kLeast), stream, end),
                                      health_);
}

void ExpertParallel::Parts::keep_captured(const std::shared_ptr<CallMemory>& memory, Stream stream,
                                          Route::State& route) {
  if (accelerator_.captures(stream)) route.captured.push_back(memory);
}

throughput::CallParams ExpertParallel::Parts::call_params(CallKind kind) const {
  return {.rank = world.rank(),
          .ranks = world.size(),
          .kind = kind,
          .weights = throughput::Weights::without,
          .comes_later = false,
          .route = nullptr,
          .format = {},
          .scales = {},
          .rows_at = 0,
          .places = 0,
          .beside_at = 0,
          .control = {.windows = windows_, .layout = control_},
          .arenas = arenas_,
          .workspace = workspace_,
          .statistics = statistics_,
          .moments = traces_ ? moments_ : nullptr,
          .patience = health_->cell.patience(world.timeout())};
}

DispatchParams ExpertParallel::Parts::dispatch_params(CallKind kind, const DispatchInput& input,
                                                      const Route::State& route,
                                                      const throughput::Plan& plan) const {
  const throughput::RouteTable table = table_of(route);
  DispatchParams params{.call = call_params(kind),
                        .x = static_cast<const std::byte*>(input.x),
                        .scales = static_cast<const std::byte*>(input.scales),
                        .topk_idx = input.topk_idx,
                        .topk_weights = input.topk_weights,
                        .idx_is_int64 = input.idx_is_int64,
                        .tokens = input.tokens,
                        .topk = options.topk,
                        .row_bytes = row_bytes(input.format),
                        .experts = options.experts,
                        .local_experts = local_experts(),
                        .partition = partition,
                        .shares = throughput::share_tokens(input.tokens, options.topk, plan),
                        .movers = plan.movers,
                        .tokens_held = 0,
                        .plan = plan.dispatch,
                        .table = table,
                        .route = table.rows(),
                        .awaited = input.received_tokens_max == 0,
                        .record = record_,
                        .readiness = {}};
  params.call.format = throughput::FormatWord::of(input.format.type, params.row_bytes);
  params.call.scales =
      throughput::ScalesWord::of(input.format.scale_words, input.format.scale_order,
                                 input.format.scale_type, exponents_unused(input, options.hidden));
  params.call.places = route.places;
  if (kind != CallKind::dispatch_again)
    params.tokens_held = std::min(params.shares.tokens_kept, throughput::kHeldRows / world.size());
  return params;
}

throughput::Readiness ExpertParallel::Parts::readiness(const DispatchInput& input, Stream stream,
                                                       Route::State& route,
                                                       std::shared_ptr<CallMemory>& memory) {
  throughput::Readiness words{
      .words = nullptr, .ranks = world.size(), .local_experts = local_experts()};
  if (!input.watcher) return words;
  memory = reserve(words.bytes(), stream);
  keep_captured(memory, stream, route);
  words.words = reinterpret_cast<uint32_t*>(memory->block().data());
  accelerator_.fill(words.words, 0, words.bytes(), stream);
  const Stream watcher{*input.watcher};
  memory->block().record_stream(watcher);
  const Event cleared = accelerator_.record(stream);
  accelerator_.wait(watcher, cleared);
  accelerator_.free_event(cleared);
  return words;
}

void ExpertParallel::Parts::launch_dispatch(const DispatchParams& params,
                                            const throughput::Plan& plan, Stream stream) {
  DispatchParams widest = params;  // Ranks that share a GPU launch one grid: of one shape.
  widest.local_experts = partition.held_at_most();
  const uint32_t tail = throughput::DispatchTail::of(widest, plan.warps).bytes();
  launch(accelerator_, throughput::dispatch_kernel,
         {.blocks = plan.blocks,
          .warps = plan.warps,
          .extra_shared_bytes = tail,
          .overlap_previous = true},
         stream, params);
}

ExpertParallel::Parts::Dispatching ExpertParallel::Parts::prepare(CallKind kind,
                                                                  const DispatchInput& given,
                                                                  Stream stream) {
  Dispatching call{};
  call.route = std::make_shared<Route::State>();
  Route::State& route = *call.route;
  route.made_by = health_;
  route.tokens = given.tokens;
  route.places = given.received_tokens_max;
  last_stream_.begin_call(stream);
  const throughput::Plan alone = plan_of(16, given.sms);  // For what needs no other rank.
  call.input =
      placed(cast(given, alone, stream, route, call.cast_rows), alone, stream, route, call.places);
  call.plan = plan_of(row_bytes(call.input.format), call.input.sms);
  call.params = dispatch_params(kind, call.input, route, call.plan);
  route.rows = call.waits() ? world.size() * options.tokens_max : route.places;  // At most.
  route.layout = call.params.received(route.rows);
  // The table is last: what lies beside the rows ends where it begins, however many they are.
  route.memory = reserve(route.layout.beside_bytes() + table_of(route).bytes(route.tokens), stream,
                         ArenaEnd::upper);
  call.params.table = table_of(route);
  call.params.route = call.params.table.rows();
  route.row_on = call.params.route;
  call.rows = reserve(route.layout.bytes(), stream);
  route.received = call.rows;
  keep_captured(call.rows, stream, route);
  call.params.call.rows_at = units_of(*call.rows);
  call.params.call.beside_at =
      units_of(*route.memory) +
      static_cast<uint32_t>(route.layout.beside_bytes() / throughput::kOffsetUnit);
  return call;
}

Received ExpertParallel::Parts::dispatch(const DispatchInput& given, Stream stream) {
  check();
  check_dispatch(given);
  Dispatching call = prepare(CallKind::dispatch, given, stream);
  std::shared_ptr<CallMemory> watched;
  call.params.readiness = readiness(call.input, stream, *call.route, watched);
  run(call, [&] { launch_dispatch(call.params, call.plan, stream); });
  return received(call.route, call.input.format, call.route->layout, call.rows,
                  call.params.readiness, watched);
}

void ExpertParallel::Parts::learn_counts(Dispatching& call) {
  if (told(record_->refusal) != static_cast<uint32_t>(throughput::RefusalKind::none))
    throw_refusal();
  Route::State& route = *call.route;
  route.rows_from = told(record_->rows_from(), world.size());
  route.tokens_per_expert = told(record_->tokens_per_expert(world.size()), local_experts());
  route.rows = std::accumulate(route.rows_from.begin(), route.rows_from.end(), 0u);
  route.layout = call.params.received(route.rows);
  // No peer writes more than it has counted.
  call.rows->block().keep_first(route.layout.bytes());
  route.memory->block().keep_last(route.layout.beside_bytes() +
                                  table_of(route).bytes(route.tokens));
}

std::vector<uint32_t> ExpertParallel::Parts::told(const uint32_t* words, uint32_t count) const {
  std::vector<uint32_t> values(count);
  std::transform(words, words + count, values.begin(),
                 [&](const uint32_t& word) { return told(word); });
  return values;
}

void ExpertParallel::Parts::await_counts(uint32_t epoch_before) {
  // The kernel has a deadline of its own, which begins when it starts: this one is for streams on
  // which it does not.
  const bool ended = accelerator_.wait_until(accelerator_.now() + 2 * world.timeout(), [&] {
    return accelerator_.read_flag(&record_->epoch) != epoch_before || health_->failed();
  });
  if (told(record_->epoch) != epoch_before) return;
  check();
  if (ended) throw InternalError("ExpertParallel: a dispatch ended without counts or a reason");
  throw PeerTimeout(
      WaitFacts{.rank = world.rank(),
                .phase = "dispatch: its stream",
                .expected = 1,
                .seen = 0,
                .waited_s = 2 * std::chrono::duration<double>(world.timeout()).count()});
}

Received ExpertParallel::Parts::dispatch_again(const DispatchInput& given, const Route& route,
                                               Stream stream) {
  check();
  check_route(route);
  const std::shared_ptr<Route::State>& state = route.state();
  check_again(given, *state);
  last_stream_.begin_call(stream);
  std::shared_ptr<CallMemory> cast_rows;
  const DispatchInput input = cast(given, plan_of(16, given.sms), stream, *state, cast_rows);
  const throughput::Plan plan = plan_of(row_bytes(input.format), input.sms);
  DispatchParams params = dispatch_params(CallKind::dispatch_again, input, *state, plan);
  const throughput::ReceivedLayout layout = params.received(state->rows);
  const std::shared_ptr<CallMemory> memory = reserve(layout.bytes(), stream);
  keep_captured(memory, stream, *state);
  state->memory->block().record_stream(stream);
  params.call.rows_at = units_of(*memory);
  params.call.route = &table_of(*state).epoch();
  std::shared_ptr<CallMemory> watched;
  params.readiness = readiness(input, stream, *state, watched);
  guard([&] { launch_dispatch(params, plan, stream); });
  check();
  return received(state, input.format, layout, memory, params.readiness, watched);
}

Received ExpertParallel::Parts::received(const std::shared_ptr<Route::State>& route,
                                         const RowFormat& format,
                                         const throughput::ReceivedLayout& layout,
                                         std::shared_ptr<CallMemory> owner,
                                         const throughput::Readiness& readiness,
                                         std::shared_ptr<CallMemory> watched) const {
  const std::byte* const begin = owner->block().data();
  const throughput::RouteTable table = table_of(*route);
  Received received;
  received.rows = route->rows;
  received.x = begin + layout.rows_at();
  received.format = format;
  received.scales = layout.scale_words == 0 ? nullptr : begin + layout.scales_at();
  received.scale_stride = layout.scale_stride();
  received.topk_idx = route->ids();
  received.topk_weights = route->weights();
  received.source_token = route->sources();
  received.rows_from = route->rows_from;
  received.tokens_per_expert = route->tokens_per_expert;
  received.rows_from_on_device = table.rows_from();
  received.tokens_per_expert_on_device = table.tokens_per_expert();
  received.route = Route(route);
  received.owner = std::move(owner);
  if (readiness.words != nullptr) {
    received.sources_ready = &readiness.source(0);
    received.experts_ready = &readiness.expert(0);
  }
  received.watched = std::move(watched);
  return received;
}

}  // namespace tokenyard
