#include "expert_parallel/throughput/host/dispatcher.hpp"

#include <algorithm>
#include <numeric>

#include "expert_parallel/throughput/host/dispatch_arguments.hpp"

namespace tokenyard::throughput {

namespace {

/// Returns the unused exponents in the last word of packed scales, if rows are cast here.
uint32_t exponents_unused(const DispatchInput& input, uint32_t hidden) {
  if (input.cast.scales != CastToFp8::Scales::packed) return 0;
  return 4 * input.format.scale_words - hidden / input.cast.channels;
}

}  // namespace

DispatchParams Dispatcher::make_params(CallKind kind, const DispatchInput& input,
                                       const Route::State& route, const Plan& plan) const {
  const RouteTable table = context_.table_of(route);
  DispatchParams params{.call = context_.params(kind),
                        .x = static_cast<const std::byte*>(input.x),
                        .scales = static_cast<const std::byte*>(input.scales),
                        .topk_idx = input.topk_idx,
                        .topk_weights = input.topk_weights,
                        .idx_is_int64 = input.idx_is_int64,
                        .tokens = input.tokens,
                        .topk = setup_.options.topk,
                        .row_bytes = setup_.row_bytes(input.format),
                        .experts = setup_.options.experts,
                        .local_experts = setup_.local_experts(),
                        .partition = setup_.partition,
                        .shares = share_tokens(input.tokens, setup_.options.topk, plan),
                        .movers = plan.movers,
                        .tokens_held = 0,
                        .plan = plan.dispatch,
                        .table = table,
                        .route = table.rows(),
                        .awaited = input.received_tokens_max == 0,
                        .record = counts_.record(),
                        .readiness = {}};
  params.call.format = FormatWord::of(input.format.type, params.row_bytes);
  params.call.scales =
      ScalesWord::of(input.format.scale_words, input.format.scale_order, input.format.scale_type,
                     exponents_unused(input, setup_.options.hidden));
  params.call.places = route.places;
  if (kind != CallKind::dispatch_again)
    params.tokens_held = std::min(params.shares.tokens_kept, kHeldRows / setup_.world.size());
  return params;
}

void Dispatcher::launch_dispatch(const DispatchParams& params, const Plan& plan,
                                 Stream stream) const {
  DispatchParams widest = params;  // Ranks that share a GPU launch one grid, so shapes must agree.
  widest.local_experts = setup_.partition.held_at_most();
  const uint32_t tail = DispatchTail::of(widest, plan.warps).bytes();
  launch(setup_.accelerator, dispatch_kernel,
         {.blocks = plan.blocks,
          .warps = plan.warps,
          .extra_shared_bytes = tail,
          .overlap_previous = true},
         stream, params);
}

PreparedDispatch Dispatcher::prepare(CallKind kind, const DispatchInput& given, Stream stream) {
  PreparedDispatch call{};
  call.route = std::make_shared<Route::State>();
  Route::State& route = *call.route;
  route.made_by = context_.health;
  route.tokens = given.tokens;
  route.places = given.received_tokens_max;
  context_.last_stream.begin_call(stream);
  const Plan alone = setup_.plan_alone(given.sms);  // For work that involves no other rank.
  call.input = experts_.placed(caster_.cast(given, alone, stream, route, call.cast_rows), alone,
                               stream, route, call.places);
  call.plan = setup_.plan_of(setup_.row_bytes(call.input.format), call.input.sms);
  call.params = make_params(kind, call.input, route, call.plan);
  route.rows =
      call.waits() ? setup_.world.size() * setup_.options.tokens_max : route.places;  // At most.
  route.layout = call.params.received(route.rows);
  // The table is last: metadata ends where the table begins, however many rows there are.
  route.memory = context_.arena.reserve(
      route.layout.beside_bytes() + context_.table_of(route).bytes(route.tokens), stream,
      ArenaEnd::upper);
  call.params.table = context_.table_of(route);
  call.params.route = call.params.table.rows();
  route.row_on = call.params.route;
  call.rows = context_.arena.reserve(route.layout.bytes(), stream);
  route.received = call.rows;
  context_.arena.keep_captured(call.rows, stream, route);
  call.params.call.rows_at = CallArena::place_of(*call.rows);
  call.params.call.beside_at = CallArena::place_of(*route.memory) +
                               static_cast<uint32_t>(route.layout.beside_bytes() / kOffsetUnit);
  return call;
}

Received Dispatcher::dispatch(const DispatchInput& given, Stream stream) {
  failures_.check();
  check_dispatch(setup_, given);
  PreparedDispatch call = prepare(CallKind::dispatch, given, stream);
  const WatchedRows watched = WatchedRows::of(context_, call.input, stream, *call.route);
  call.params.readiness = watched.words;
  run(call, [&] { launch_dispatch(call.params, call.plan, stream); });
  return received(call.route, call.input.format, call.route->layout, call.rows, watched);
}

void Dispatcher::read_counts(PreparedDispatch& call) const {
  if (counts_.refused()) failures_.throw_refusal();
  Route::State& route = *call.route;
  route.rows_from = counts_.rows_from();
  route.tokens_per_expert = counts_.tokens_per_expert();
  route.rows = std::accumulate(route.rows_from.begin(), route.rows_from.end(), 0u);
  route.layout = call.params.received(route.rows);
  // No peer stores more rows than it has counted.
  call.rows->block().keep_first(route.layout.bytes());
  route.memory->block().keep_last(route.layout.beside_bytes() +
                                  context_.table_of(route).bytes(route.tokens));
}

void Dispatcher::await_counts(uint32_t epoch_before) const {
  // The kernel's own deadline begins when it starts; this one covers a stream on which it never
  // does.
  const bool ended = setup_.accelerator.wait_until(
      setup_.accelerator.now() + 2 * setup_.world.timeout(),
      [&] { return counts_.epoch() != epoch_before || context_.health->failed(); });
  if (counts_.epoch() != epoch_before) return;
  failures_.check();
  if (ended)
    throw InternalError("ExpertParallel: a dispatch published neither counts nor a refusal");
  throw PeerTimeout(
      WaitFacts{.rank = setup_.world.rank(),
                .phase = "dispatch: its stream",
                .expected = 1,
                .seen = 0,
                .waited_s = 2 * std::chrono::duration<double>(setup_.world.timeout()).count()});
}

Received Dispatcher::dispatch_again(const DispatchInput& given, const Route& route, Stream stream) {
  failures_.check();
  context_.check_route(route);
  const std::shared_ptr<Route::State>& state = route.state();
  check_dispatch_again(setup_, given, *state);
  context_.last_stream.begin_call(stream);
  std::shared_ptr<CallMemory> cast_rows;
  const DispatchInput input =
      caster_.cast(given, setup_.plan_alone(given.sms), stream, *state, cast_rows);
  const Plan plan = setup_.plan_of(setup_.row_bytes(input.format), input.sms);
  DispatchParams params = make_params(CallKind::dispatch_again, input, *state, plan);
  const ReceivedLayout layout = params.received(state->rows);
  const std::shared_ptr<CallMemory> memory = context_.arena.reserve(layout.bytes(), stream);
  context_.arena.keep_captured(memory, stream, *state);
  state->memory->block().record_stream(stream);
  params.call.rows_at = CallArena::place_of(*memory);
  params.call.route = &context_.table_of(*state).epoch();
  const WatchedRows watched = WatchedRows::of(context_, input, stream, *state);
  params.readiness = watched.words;
  failures_.guard([&] { launch_dispatch(params, plan, stream); });
  failures_.check();
  return received(state, input.format, layout, memory, watched);
}

Received Dispatcher::received(const std::shared_ptr<Route::State>& route, const RowFormat& format,
                              const ReceivedLayout& layout, std::shared_ptr<CallMemory> owner,
                              const WatchedRows& watched) const {
  const std::byte* const begin = owner->block().data();
  const RouteTable table = context_.table_of(*route);
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
  if (watched.words.words != nullptr) {
    received.sources_ready = &watched.words.source(0);
    received.experts_ready = &watched.words.expert(0);
  }
  received.watched = watched.memory;
  return received;
}

ExpertParallel::Memory Dispatcher::memory(const RowFormat& format, uint32_t tokens,
                                          uint32_t rows) const {
  ReceivedLayout layout{.rows = setup_.world.size() * setup_.options.tokens_max,
                        .row_bytes = setup_.row_bytes(format),
                        .topk = setup_.options.topk,
                        .scale_words = format.scale_words,
                        .scale_order = format.scale_order};
  const RouteTable table{
      .base = nullptr, .ranks = setup_.world.size(), .local_experts = setup_.local_experts()};
  const auto pieces = [](size_t bytes) {
    return (std::max<size_t>(bytes, 1) + kOffsetUnit - 1) / kOffsetUnit * kOffsetUnit;
  };
  ExpertParallel::Memory memory;
  memory.object = pieces(context_.window.bytes());
  const auto of_route = [&] { return pieces(layout.beside_bytes() + table.bytes(tokens)); };
  memory.peak = pieces(layout.bytes()) + of_route();
  layout.rows = rows;
  memory.kept_by_route = of_route();
  memory.kept = pieces(layout.bytes()) + memory.kept_by_route;
  return memory;
}

}  // namespace tokenyard::throughput
