#include "expert_parallel/throughput/host/dispatcher.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "device/device_memory.hpp"
#include "expert_parallel/common/place_choices.hpp"
#include "expert_parallel/throughput/host/dispatch_arguments.hpp"
#include "expert_parallel/throughput/host/no_room.hpp"
#include "fabric/arena_full.hpp"

namespace tokenyard::throughput {

namespace {

/// Returns the unused exponents in the last word of packed scales, if rows are cast here.
uint32_t exponents_unused(const DispatchArguments& input, uint32_t hidden) {
  if (input.cast.scales != CastToFp8::Scales::packed) return 0;
  return 4 * input.format.scale_words - hidden / input.cast.channels;
}

}  // namespace

DispatchParams Dispatcher::make_params(CallKind kind, const DispatchArguments& input,
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
                        .experts = setup_.places(),
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
  params.call.format = FormatWord::of(element_type_of(input.format.type), params.row_bytes);
  params.call.scales = ScalesWord::of(input.format.scale_words, input.format.scale_order,
                                      scale_type_of(input.format.scale_type),
                                      exponents_unused(input, setup_.options.hidden));
  params.call.places = route.places;
  if (kind != CallKind::dispatch_again)
    params.tokens_held = std::min(params.shares.tokens_kept, kHeldRows / setup_.world.size());
  return params;
}

void Dispatcher::check_launch(const DispatchParams& params, const Plan& plan) const {
  if (context_.rails) context_.rails->check_dispatch(params, plan.blocks);
}

void Dispatcher::launch_dispatch(const DispatchParams& params, const Plan& plan,
                                 Stream stream) const {
  if (context_.rails) return context_.rails->launch_dispatch(params, plan.blocks, stream);
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

PreparedDispatch Dispatcher::prepare(CallKind kind, const DispatchArguments& given, Stream stream) {
  try {
    return prepare_in_arena(kind, given, stream);
  } catch (const ArenaFull& full) {
    // The other ranks would wait for this one until their deadline.
    if (kind == CallKind::dispatch && !given.comes_again && !setup_.accelerator.captures(stream))
      refuse_for_room(given, full, stream);
    throw;
  }
}

void Dispatcher::refuse_for_room(const DispatchArguments& given, const ArenaFull& full,
                                 Stream stream) {
  PreparedDispatch call{};
  call.route = std::make_shared<Route::State>();
  Route::State& route = *call.route;
  route.made_by = context_.health;
  route.tokens = 1;
  route.places = given.received_tokens_max;
  DispatchArguments& input = call.input = given;
  input.tokens = 1;
  if (given.cast.scales != CastToFp8::Scales::none)
    input.format = format_of_cast(given, setup_.options.hidden);
  call.plan = setup_.plan_of(setup_.row_bytes(input.format), input.sms);
  // The arena has no room, so this call's token, and what it leaves in the route, lie elsewhere.
  std::vector<int64_t> ids(setup_.options.topk, -1);
  ids.front() = NoRoom::of_bytes(full.needed, full.free).id();
  const size_t choices = ids.size() * sizeof(int64_t), row = setup_.row_bytes(input.format),
               scales = size_t{input.format.scale_words} * sizeof(uint32_t),
               table = context_.table_bytes(route);
  const auto whole = [](size_t bytes) {
    return (bytes + kOffsetUnit - 1) / kOffsetUnit * kOffsetUnit;
  };
  const DeviceMemory memory(setup_.accelerator,
                            2 * whole(choices) + whole(row) + whole(scales) + table,
                            DeviceMemory::Kind::device);
  auto* const base = memory.as<std::byte>();
  setup_.accelerator.fill(base, 0, whole(choices), stream);
  setup_.accelerator.copy(base + whole(choices), ids.data(), choices, stream);
  std::byte* const rows = base + 2 * whole(choices);
  input.topk_idx = base + whole(choices);
  input.idx_is_int64 = true;
  if (given.topk_weights != nullptr) input.topk_weights = reinterpret_cast<const float*>(base);
  input.x = rows;
  if (scales != 0) input.scales = rows + whole(row);
  context_.last_stream.begin_call(stream);
  call.params = make_params(CallKind::dispatch, input, route, call.plan);
  call.params.table.base = rows + whole(row) + whole(scales);
  call.params.route = call.params.table.rows();
  run(call, [&] { launch_dispatch(call.params, call.plan, stream); });
  setup_.await_stream(stream, "a dispatch without room");
  failures_.check();
}

PreparedDispatch Dispatcher::prepare_in_arena(CallKind kind, const DispatchArguments& given,
                                              Stream stream) {
  PreparedDispatch call{};
  call.route = std::make_shared<Route::State>();
  Route::State& route = *call.route;
  route.made_by = context_.health;
  route.tokens = given.tokens;
  route.places = given.received_tokens_max;
  context_.last_stream.begin_call(stream);
  const Plan alone = setup_.plan_alone(given.sms);  // For work that involves no other rank.
  call.input =
      place(caster_.cast(given, alone, stream, route, call.cast_rows), alone, stream, call);
  call.plan = setup_.plan_of(setup_.row_bytes(call.input.format), call.input.sms);
  call.params = make_params(kind, call.input, route, call.plan);
  check_launch(call.params, call.plan);
  route.rows =
      call.waits() ? setup_.world.size() * setup_.options.tokens_max : route.places;  // At most.
  route.layout = call.params.received(route.rows);
  // The table is last: metadata ends where the table begins, however many rows there are.
  route.memory = context_.arena.reserve(route.layout.beside_bytes() + context_.table_bytes(route),
                                        stream, ArenaEnd::upper);
  call.params.table = context_.table_of(route);
  call.params.route = call.params.table.rows();
  if (!context_.rails) route.row_on = {call.params.route, {route.tokens, setup_.world.size()}};
  call.rows = context_.arena.reserve(route.layout.bytes(), stream);
  route.received = call.rows;
  context_.arena.keep_captured(call.rows, stream, route);
  call.params.call.rows_at = CallArena::place_of(*call.rows);
  call.params.call.beside_at = CallArena::place_of(*route.memory) +
                               static_cast<uint32_t>(route.layout.beside_bytes() / kOffsetUnit);
  return call;
}

DispatchArguments Dispatcher::place(const DispatchArguments& input, const Plan& plan, Stream stream,
                                    PreparedDispatch& call) const {
  if (!experts_.moves_choices() || input.tokens == 0) return input;
  Route::State& route = *call.route;
  call.places = context_.arena.scratch(size_t{input.tokens} * setup_.options.topk * sizeof(int64_t),
                                       stream, route);
  route.lost = context_.arena.reserve(input.tokens * sizeof(int32_t), stream, ArenaEnd::upper);
  auto* const ids = reinterpret_cast<int64_t*>(call.places->block().data());
  launch(setup_.accelerator, place_choices_kernel,
         {.blocks = plan.blocks, .warps = plan.warps, .cooperative = false, .local = true}, stream,
         {.rank = setup_.world.rank(),
          .tokens = input.tokens,
          .topk = setup_.options.topk,
          .topk_idx = input.topk_idx,
          .idx_is_int64 = input.idx_is_int64,
          .table = experts_.table(),
          .failed = nullptr,
          .left_out = nullptr,
          .placed = ids,
          .lost = reinterpret_cast<int32_t*>(route.lost->block().data()),
          .counted = experts_.lost_choices()});
  DispatchArguments at_places = input;
  at_places.topk_idx = ids;
  at_places.idx_is_int64 = true;
  return at_places;
}

Received Dispatcher::dispatch(const DispatchInput& input, Stream stream) {
  failures_.check();
  const DispatchArguments given = checked_dispatch(setup_, input);
  PreparedDispatch call = prepare(CallKind::dispatch, given, stream);
  const WatchedRows watched = WatchedRows::of(context_, call.input, stream, *call.route);
  call.params.readiness = watched.words;
  run(call, [&] { launch_dispatch(call.params, call.plan, stream); });
  context_.observation.count_dispatch(*call.route, setup_.bytes_sent_per_row(call.input.format));
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
  route.memory->block().keep_last(route.layout.beside_bytes() + context_.table_bytes(route));
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

Received Dispatcher::dispatch_again(const DispatchInput& from_caller, const Route& route,
                                    Stream stream) {
  failures_.check();
  context_.check_route(route);
  const std::shared_ptr<Route::State>& state = RouteAccess::state_of(route);
  const DispatchArguments given = checked_dispatch_again(setup_, from_caller, *state);
  context_.last_stream.begin_call(stream);
  std::shared_ptr<CallMemory> cast_rows;
  const DispatchArguments input =
      caster_.cast(given, setup_.plan_alone(given.sms), stream, *state, cast_rows);
  const Plan plan = setup_.plan_of(setup_.row_bytes(input.format), input.sms);
  DispatchParams params = make_params(CallKind::dispatch_again, input, *state, plan);
  check_launch(params, plan);
  const ReceivedLayout layout = params.received(state->rows);
  const std::shared_ptr<CallMemory> memory = context_.arena.reserve(layout.bytes(), stream);
  context_.arena.keep_captured(memory, stream, *state);
  state->memory->block().record_stream(stream);
  params.call.rows_at = CallArena::place_of(*memory);
  params.call.route = &context_.table_of(*state).epoch();
  const WatchedRows watched = WatchedRows::of(context_, input, stream, *state);
  params.readiness = watched.words;
  failures_.guard(CallKind::dispatch_again, [&] { launch_dispatch(params, plan, stream); });
  failures_.check();
  context_.observation.count_dispatch(*state, setup_.bytes_sent_per_row(input.format));
  return received(state, input.format, layout, memory, watched);
}

Received Dispatcher::received(const std::shared_ptr<Route::State>& route, const RowFormat& format,
                              const ReceivedLayout& layout, std::shared_ptr<CallMemory> owner,
                              const WatchedRows& watched) const {
  const std::byte* const begin = owner->block().data();
  const RouteTable table = context_.table_of(*route);
  Received received;
  received.rows = route->rows;
  received.x = rows_at(begin + layout.rows_at(), route->rows, format, setup_.options.hidden);
  received.format = format;
  received.scales =
      scales_at(begin + layout.scales_at(), route->rows, format, layout.scale_stride());
  received.topk_idx = {route->ids(), {route->rows, setup_.options.topk}};
  received.topk_weights = {route->weights(), {route->rows, setup_.options.topk}};
  received.source_token = {route->sources(), {route->rows}};
  received.rows_from = route->rows_from;
  received.tokens_per_expert = route->tokens_per_expert;
  received.rows_from_on_device = {table.rows_from(), {setup_.world.size()}};
  received.tokens_per_expert_on_device = {table.tokens_per_expert(), {setup_.local_experts()}};
  if (route->lost)
    received.lost = {reinterpret_cast<const int32_t*>(route->lost->block().data()),
                     {route->tokens}};
  received.route = RouteAccess::make(route);
  received.owner = std::move(owner);
  if (watched.words.words != nullptr) {
    received.sources_ready = {&watched.words.source(0), {setup_.world.size()}};
    received.experts_ready = {&watched.words.expert(0), {setup_.local_experts()}};
  }
  received.watched = watched.memory;
  return received;
}

}  // namespace tokenyard::throughput
