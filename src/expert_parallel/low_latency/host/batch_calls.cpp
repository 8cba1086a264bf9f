/// Dispatch and combine, from the host's side. What a call changes here it changes once its launch
/// was not refused: a call that throws has not been made.
#include <fmt/format.h>

#include <algorithm>

#include "expert_parallel/low_latency/host/call_context.hpp"

namespace tokenyard {

using low_latency::CallParams;
using low_latency::CombineParams;
using low_latency::DispatchParams;
using low_latency::Part;
using Stage = LowLatencyHandle::Stage;

void LowLatency::Parts::end_batches() {
  for (const auto& batch : batches_)
    if (const Handle handle = batch->holder.lock()) handle->end(Stage::ended);
  dispatches_left_.clear();
  combines_left_.clear();
}

CallParams LowLatency::Parts::call_params(const LowLatencyCall& call) {
  const uint32_t timeout = low_latency::timeout_units(call.timeout.value_or(world.timeout()));
  longest_timeout_ = std::max(
      longest_timeout_, std::chrono::nanoseconds(uint64_t{timeout} * low_latency::kTimeUnitNs));
  low_latency::RankSet active = low_latency::RankSet::first(world.size());
  for (uint32_t rank = 0; rank < call.active.size(); ++rank)
    if (!call.active[rank]) active.erase(rank);
  return {.rank = world.rank(),
          .ranks = world.size(),
          .part = Part::both,
          .send_blocks = 0,
          .whole_gpu = false,
          .active = active,
          .staging_blocks = 0,
          .windows = windows_,
          .masks = masks_.masks(),
          .workspace = workspace_.as<low_latency::Workspace>(),
          .timeout = timeout,
          .polls_a_look = plan_.polls_a_look,
          .span_ns = call.span_ns};
}

LowLatency::Parts::Handle LowLatency::Parts::take_batch() {
  for (const auto& batch : batches_) {
    if (!batch->holder.expired()) continue;
    const auto handle = std::make_shared<LowLatencyHandle>(batch, this);
    batch->holder = handle;
    return handle;
  }
  throw InvalidArgument("handle", "at most two batches that are neither combined nor dropped",
                        "a third one");
}

void LowLatency::Parts::launch_dispatch(DispatchParams params, Part part, uint32_t blocks,
                                        Stream stream) {
  params.call.whole_gpu = blocks >= plan_.multiprocessors;
  if (part == Part::receive) blocks = plan_.receivers_alone(blocks, params.row.units());
  const low_latency::Split split = plan_.dispatch(part, blocks, params.tokens);
  params.call.part = part;
  params.call.send_blocks = split.send_blocks;
  const low_latency::SendRoles roles = plan_.send_roles(split, params.tokens);
  params.data_blocks = roles.data_blocks;
  params.tell_first = roles.tell_first;
  params.tell_blocks = roles.tell_blocks;
  const uint32_t warps = plan_.dispatch_warps(params, split);
  params.divide(split.blocks - split.send_blocks, warps, plan_.words_summed);
  // Ranks that share a GPU launch one grid: of one shape.
  low_latency::DispatchTail widest = params.tail;
  widest.local_experts = homes_.held_at_most();
  last_stream_.begin_call(stream);
  // Not cooperative: senders come first and wait for no receiver of their own rank.
  launch(accelerator_, low_latency::dispatch_kernel,
         {.blocks = split.blocks,
          .warps = warps,
          .extra_shared_bytes =
              low_latency::receives(part) ? static_cast<uint32_t>(widest.bytes()) : 0,
          .cooperative = false,
          .overlap_previous = true},
         stream, params);
}

void LowLatency::Parts::launch_combine(CombineParams params, bool logfmt, Part part,
                                       uint32_t blocks, Stream stream) {
  const low_latency::Split split = plan_.combine(part, blocks, params.tokens, logfmt);
  params.call.part = part;
  params.call.send_blocks = split.send_blocks;
  params.call.whole_gpu = blocks >= plan_.multiprocessors;
  params.call.windows.layout = layout_.with_partials_from(sums_.first(logfmt));
  params.only_in_other = sums_.only_in_other(logfmt);
  params.divide(logfmt ? low_latency::kLogFmtSpanChunks : low_latency::kBf16SpanChunks);
  last_stream_.begin_call(stream);
  launch(accelerator_, logfmt ? low_latency::combine_logfmt_kernel : low_latency::combine_kernel,
         {.blocks = split.blocks,
          .warps = logfmt ? plan_.logfmt_warps : plan_.combine_warps,
          .cooperative = false,
          .overlap_previous = true},
         stream, params);
}

LowLatencyReceived LowLatency::Parts::dispatch(const LowLatencyInput& input,
                                               const LowLatencyCall& call) {
  require_calls();
  require_format(input.rows);
  if (!call.hook && !dispatches_left_.empty())
    throw InvalidArgument("hook", "that of the dispatch before, called first", "not called");
  LowLatencyCall usable{.hook = call.hook, .stream = call.stream};
  try {
    check_dispatch_call(call, check_call(call));
    usable = call;
    check_input(input);
  } catch (const InvalidArgument& error) {
    throw RefusedBatch(error, send_batch({.rows = input.rows}, usable));
  }
  return send_batch(input, call);
}

LowLatencyReceived LowLatency::Parts::send_batch(const LowLatencyInput& input,
                                                 const LowLatencyCall& call) {
  const uint32_t blocks = check_call(call);
  const Handle handle = take_batch();
  const low_latency::Batch& batch = *handle->batch;
  handle->tokens = input.tokens;
  handle->weights_told = input.weights != nullptr;
  DispatchParams params{.call = call_params(call),
                        .x = static_cast<const std::byte*>(input.x),
                        .scales = input.scales,
                        .topk_idx = input.topk_idx,
                        .idx_is_int64 = input.idx_is_int64,
                        .tokens = input.tokens,
                        .tokens_max = options.tokens_max,
                        .topk = options.topk,
                        .experts = options.experts,
                        .local_experts = local_experts(),
                        .row = low_latency::row_layout(options, input.rows),
                        .out = batch.out(),
                        .complaint = complaint_.as<low_latency::Complaint>(),
                        .tail = {},
                        .by = {},
                        .data_blocks = 0,
                        .tell_first = 0,
                        .tell_blocks = 0,
                        .send_teams = 0,
                        .ids_shift = 0,
                        .weights = input.weights,
                        .batch = batch.number()};
  params.out.rows_total = call.rows_total;
  params.out.waited = call.waited_cycles;
  launch_dispatch(params, call.hook ? Part::send : Part::both, blocks, Stream{call.stream});
  if (call.hook) {
    handle->dispatch_left = params;
    handle->blocks_left = blocks;
    dispatches_left_.push_back(handle);
  } else {
    handle->stage = Stage::dispatched;
  }
  const bool fp8 = params.row.is_fp8();
  return {.x = params.out.x,
          .scales = fp8 ? params.out.scales : nullptr,
          .source_token = params.out.source,
          .ranges = reinterpret_cast<const int32_t*>(params.out.ranges),
          .counts = params.out.counts,
          .handle = handle};
}

void LowLatency::Parts::combine(const LowLatencyCombine& what, const Handle& handle,
                                const LowLatencyCall& call) {
  require_calls();
  check_handle(handle, Stage::dispatched);
  check_combine(what, *handle);
  const uint32_t blocks = check_call(call);
  const low_latency::DispatchOut& batch = handle->batch->out();
  const CombineParams params{.call = call_params(call),
                             .y = static_cast<const std::byte*>(what.y),
                             .weights = handle->weights_told ? batch.weights : what.weights,
                             .row_slot = batch.row_slot,
                             .picks = batch.picks,
                             .out = static_cast<std::byte*>(what.out),
                             .lost = what.lost,
                             .waited = call.waited_cycles,
                             .tokens = handle->tokens,
                             .tokens_max = options.tokens_max,
                             .topk = options.topk,
                             .experts = options.experts,
                             .pieces = options.hidden / 8,
                             .by = {},
                             .streams = 0,
                             .parts = 0,
                             .spans = 0,
                             .told = handle->weights_told,
                             .batch = handle->batch->number(),
                             .dispatched = batch.epoch,
                             .only_in_other = 0};
  if (!call.hook && !combines_left_.empty())
    throw InvalidArgument("hook", "that of the combine before, called first", "not called");
  launch_combine(params, what.logfmt, call.hook ? Part::send : Part::both, blocks,
                 Stream{call.stream});
  if (call.hook) {
    handle->combine_left = params;
    handle->logfmt_left = what.logfmt;
    handle->blocks_left = blocks;
    handle->stage = Stage::combine_sent;
    combines_left_.push_back(handle);
  } else {
    handle->end(Stage::combined);
  }
}

void LowLatency::Parts::receive(const Handle& handle, Stream stream) {
  require_calls();
  const bool combines = handle && handle->stage == Stage::combine_sent;
  check_handle(handle, combines ? Stage::combine_sent : Stage::dispatch_sent);
  std::deque<Handle>& left = combines ? combines_left_ : dispatches_left_;
  // Staging is drained in the order of epochs.
  if (left.front() != handle)
    throw InvalidArgument("hook", "that of the call before, called first", "not called");
  if (combines) {
    launch_combine(*handle->combine_left, handle->logfmt_left, Part::receive, handle->blocks_left,
                   stream);
    handle->end(Stage::combined);
  } else {
    launch_dispatch(*handle->dispatch_left, Part::receive, handle->blocks_left, stream);
    handle->stage = Stage::dispatched;
  }
  left.pop_front();
}

void* LowLatency::Parts::combine_buffer(const Handle& handle) {
  if (!handle || handle->made_by != this || !handle->batch)
    throw InvalidArgument("handle", "that of a batch of this object which is under way",
                          "another one");
  return handle->batch->combine_buffer();
}

void LowLatency::Parts::check() {
  require_calls();
  raise_findings();
}

}  // namespace tokenyard
