/// One dispatch, from the host's side.
#include <algorithm>
#include <numeric>

#include "expert_parallel/exchange.hpp"

namespace tokenyard {

using throughput::CallKind;
using throughput::DispatchParams;

void ExpertParallel::Parts::begin_call(Stream stream) {
  if (called_ && last_stream_.native != stream.native) {
    const Event before = accelerator_.record(last_stream_);
    accelerator_.wait(stream, before);
    accelerator_.free_event(before);
  }
  last_stream_ = stream;
  called_ = true;
}

std::shared_ptr<CallMemory> ExpertParallel::Parts::reserve(size_t bytes, Stream stream) {
  // A call's memory has a place, even where nothing will come.
  constexpr size_t kLeast = throughput::kOffsetUnit;
  return std::make_shared<CallMemory>(arena_.allocate(std::max(bytes, kLeast), stream), health_);
}

throughput::CallParams ExpertParallel::Parts::call_params(CallKind kind, uint32_t route) const {
  return {.rank = world.rank(),
          .ranks = world.size(),
          .kind = kind,
          .weights = throughput::Weights::without,
          .route = route,
          .rows_at = 0,
          .weights_at = 0,
          .control = {.windows = {windows_, world.rank()}, .layout = control_},
          .arenas = arena_.bases(),
          .workspace = workspace_,
          .patience = health_->cell.patience(world.timeout())};
}

DispatchParams ExpertParallel::Parts::dispatch_params(CallKind kind, uint32_t tokens, const void* x,
                                                      const Route::State& route) const {
  return {.call = call_params(kind, route.epoch),
          .x = static_cast<const std::byte*>(x),
          .topk_idx = nullptr,
          .topk_weights = nullptr,
          .idx_is_int64 = false,
          .tokens = tokens,
          .topk = options.topk,
          .row_bytes = row_bytes(),
          .experts = options.experts,
          .local_experts = control_.local_experts,
          .shares = throughput::share_tokens(tokens, options.topk, world.size(), plan),
          .plan = plan.dispatch,
          .received = received_layout(),
          .route = reinterpret_cast<int32_t*>(route.table->block().data()),
          .record = record_};
}

void ExpertParallel::Parts::launch_dispatch(const DispatchParams& params, Stream stream) {
  const uint32_t tail = throughput::DispatchTail::of(params, plan.warps).bytes();
  launch(accelerator_, throughput::dispatch_kernel,
         {.blocks = plan.blocks, .warps = plan.warps, .extra_shared_bytes = tail}, stream, params);
}

Received ExpertParallel::Parts::dispatch(const DispatchInput& input, Stream stream) {
  check();
  check_dispatch(input);
  const throughput::ReceivedLayout layout = received_layout();
  auto route = std::make_shared<Route::State>();
  route->made_by = health_;
  route->received = reserve(layout.rows_at() + size_t{layout.rows_max} * row_bytes(), stream);
  route->table = reserve(size_t{input.tokens} * world.size() * sizeof(int32_t), stream);
  route->epoch = 0;  // Not known yet.
  route->tokens = input.tokens;

  DispatchParams params = dispatch_params(CallKind::dispatch, input.tokens, input.x, *route);
  const uint64_t rows_at = route->received->block().offset() + layout.rows_at();
  params.call.rows_at = static_cast<uint32_t>(rows_at / throughput::kOffsetUnit);
  params.topk_idx = input.topk_idx;
  params.idx_is_int64 = input.idx_is_int64;
  params.topk_weights = input.topk_weights;

  begin_call(stream);
  const uint32_t epoch_before = told(record_->epoch);
  guard([&] {
    launch_dispatch(params, stream);
    await_counts(epoch_before);
  });
  if (told(record_->refusal) != static_cast<uint32_t>(throughput::RefusalKind::none))
    throw_refusal();

  route->epoch = told(record_->epoch);
  route->rows_from = told(record_->rows_from(), world.size());
  route->tokens_per_expert = told(record_->tokens_per_expert(world.size()), control_.local_experts);
  route->rows = std::accumulate(route->rows_from.begin(), route->rows_from.end(), 0u);
  route->received->block().trim(layout.rows_at() + size_t{route->rows} * row_bytes());
  return received(route, route->received->block().data() + layout.rows_at(), route->received);
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

Received ExpertParallel::Parts::dispatch_again(const void* x, const Route& route, Stream stream) {
  check();
  check_route(route);
  const std::shared_ptr<Route::State>& state = route.state();
  check_rows(x, "x", state->tokens);
  const std::shared_ptr<CallMemory> rows = reserve(size_t{state->rows} * row_bytes(), stream);
  state->table->block().record_stream(stream);
  DispatchParams params = dispatch_params(CallKind::dispatch_again, state->tokens, x, *state);
  params.call.rows_at = static_cast<uint32_t>(rows->block().offset() / throughput::kOffsetUnit);
  begin_call(stream);
  guard([&] { launch_dispatch(params, stream); });
  check();
  return received(state, rows->block().data(), rows);
}

Received ExpertParallel::Parts::received(const std::shared_ptr<Route::State>& route,
                                         const std::byte* rows,
                                         std::shared_ptr<CallMemory> owner) const {
  const throughput::ReceivedLayout layout = received_layout();
  const std::byte* const metadata = route->received->block().data();
  Received received;
  received.rows = route->rows;
  received.x = rows;
  received.topk_idx = reinterpret_cast<const int32_t*>(metadata + layout.ids_at());
  received.topk_weights = reinterpret_cast<const float*>(metadata + layout.weights_at());
  received.source_token = reinterpret_cast<const int32_t*>(metadata + layout.sources_at());
  received.rows_from = route->rows_from;
  received.tokens_per_expert = route->tokens_per_expert;
  received.route = Route(route);
  received.owner = std::move(owner);
  return received;
}

}  // namespace tokenyard
