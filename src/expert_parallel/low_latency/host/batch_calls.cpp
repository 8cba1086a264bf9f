#include "expert_parallel/low_latency/host/batch_calls.hpp"

#include <algorithm>

#include "base/tensor_arguments.hpp"
#include "expert_parallel/common/place_choices.hpp"

namespace tokenyard::low_latency {

using Stage = LowLatencyHandle::Stage;

namespace {

/// Adds to a total whose only writer is this thread.
void add(std::atomic<uint64_t>& total, uint64_t value) {
  total.store(total.load(std::memory_order_relaxed) + value, std::memory_order_relaxed);
}

}  // namespace

LowLatency::Metrics BatchCalls::totals() const {
  const auto read = [](const std::atomic<uint64_t>& total) {
    return total.load(std::memory_order_relaxed);
  };
  return {.dispatch_calls = before_.dispatch_calls + read(totals_.dispatch_calls),
          .refused_dispatch_calls =
              before_.refused_dispatch_calls + read(totals_.refused_dispatch_calls),
          .combine_calls = before_.combine_calls + read(totals_.combine_calls),
          .dispatched_tokens = before_.dispatched_tokens + read(totals_.dispatched_tokens),
          .unplaced_choices = before_.unplaced_choices + context_.experts.lost_choices_total(),
          .masked_by_peer = {}};
}

/// Between ranks that put, messages travel between the two parts: what the first has stored in
/// mirrors leaves, and what comes is stored where the second finds it.
void BatchCalls::launch_dispatch(const DispatchParams& params, Part part, uint32_t blocks,
                                 Stream stream) {
  if (!context_.put_peers) return launch_near_dispatch(params, part, blocks, stream);
  if (sends(part)) launch_near_dispatch(params, Part::send, blocks, stream);
  context_.streams.last.begin_call(stream);
  context_.put_peers->launch_rows(params, part, blocks, stream);
  if (receives(part)) launch_near_dispatch(params, Part::receive, blocks, stream);
}

void BatchCalls::launch_combine(const CombineParams& params, bool logfmt, Part part,
                                uint32_t blocks, Stream stream) {
  if (!context_.put_peers) return launch_near_combine(params, logfmt, part, blocks, stream);
  context_.streams.last.begin_call(stream);
  if (sends(part)) {
    context_.put_peers->launch_weights(params, blocks, stream);
    launch_near_combine(params, logfmt, Part::send, blocks, stream);
  }
  context_.put_peers->launch_sums(params, logfmt, part, blocks, stream);
  if (receives(part)) launch_near_combine(params, logfmt, Part::receive, blocks, stream);
}

void BatchCalls::launch_near_dispatch(DispatchParams params, Part part, uint32_t blocks,
                                      Stream stream) {
  params.call.whole_gpu = blocks >= setup_.plan.multiprocessors;
  if (part == Part::receive) blocks = setup_.plan.receivers_alone(blocks, params.row.units());
  const Split split = setup_.plan.dispatch(part, blocks, params.tokens);
  params.call.part = part;
  params.call.send_blocks = split.send_blocks;
  const SendRoles roles = setup_.plan.send_roles(split, params.tokens);
  params.data_blocks = roles.data_blocks;
  params.publish_first = roles.publish_first;
  params.publish_blocks = roles.publish_blocks;
  const uint32_t warps = setup_.plan.dispatch_warps(params, split);
  params.divide(split.blocks - split.send_blocks, warps, setup_.plan.words_summed);
  // Ranks that share a GPU launch one grid, so shapes must agree.
  DispatchTail widest = params.tail;
  widest.local_experts = setup_.homes.held_at_most();
  const uint64_t tail_bytes =
      receives(part) ? widest.bytes() : DispatchTail::rank_bytes(params.call.ranks);
  context_.streams.last.begin_call(stream);
  // Not cooperative: sending blocks come first and wait for no receiver of their own rank.
  launch(setup_.accelerator, dispatch_kernel,
         {.blocks = split.blocks,
          .warps = warps,
          .extra_shared_bytes = static_cast<uint32_t>(tail_bytes),
          .cooperative = false,
          .overlap_previous = true},
         stream, params);
}

void BatchCalls::launch_near_combine(CombineParams params, bool logfmt, Part part, uint32_t blocks,
                                     Stream stream) {
  const Split split = setup_.plan.combine(part, blocks, params.tokens, logfmt);
  params.call.part = part;
  params.call.send_blocks = split.send_blocks;
  params.call.whole_gpu = blocks >= setup_.plan.multiprocessors;
  params.call.windows.layout = setup_.layout.with_partials_from(setup_.sums.first(logfmt));
  params.only_in_other = setup_.sums.only_in_other(logfmt);
  params.divide(logfmt ? kLogFmtSpanChunks : kBf16SpanChunks);
  context_.streams.last.begin_call(stream);
  launch(setup_.accelerator, logfmt ? combine_logfmt_kernel : combine_kernel,
         {.blocks = split.blocks,
          .warps = logfmt ? setup_.plan.logfmt_warps : setup_.plan.combine_warps,
          .extra_shared_bytes = CombineTail::bytes(params.call.ranks),
          .cooperative = false,
          .overlap_previous = true},
         stream, params);
}

void BatchCalls::launch_placement(const DispatchArguments& input, const CallParams& call,
                                  const PlacedChoices& choices, Stream stream) {
  const auto quotient_up = [](uint32_t dividend, uint32_t divisor) {
    return (dividend + divisor - 1) / divisor;
  };
  const uint32_t tokens_a_warp = std::max(kWarpLanes / setup_.options.topk, 1u);
  const uint32_t needed = quotient_up(input.tokens, tokens_a_warp);
  const uint32_t warps = std::min(needed, kPlaceThreadsMax / kWarpLanes);
  context_.streams.last.begin_call(stream);
  launch(setup_.accelerator, place_choices_kernel,
         {.blocks = std::min(quotient_up(needed, warps), setup_.plan.blocks_max),
          .warps = warps,
          .cooperative = false,
          .overlap_previous = true,
          .local = true},
         stream,
         {.rank = call.rank,
          .tokens = input.tokens,
          .topk = setup_.options.topk,
          .topk_idx = input.topk_idx,
          .idx_is_int64 = input.idx_is_int64,
          .table = context_.experts.table(),
          .failed = call.masks.failed,
          .left_out = call.left_out,
          .placed = choices.placed,
          .lost = choices.lost,
          .counted = context_.experts.lost_choices()});
}

LowLatencyReceived BatchCalls::dispatch(const LowLatencyInput& input, const LowLatencyCall& call) {
  context_.require_calls();
  require_format(setup_, input.rows);
  if (!call.hook && !context_.batches.dispatches_left.empty())
    throw InvalidArgument("hook", "the previous dispatch's hook called first", "not called");
  LowLatencyCall usable{.hook = call.hook, .stream = call.stream};
  DispatchArguments arguments{.rows = input.rows};
  try {
    check_dispatch_call(setup_, call, check_call(setup_, call));
    usable = call;
    arguments = checked_input(setup_, input);
  } catch (const InvalidArgument& error) {
    LowLatencyReceived received = send_batch(arguments, usable);
    add(totals_.refused_dispatch_calls, 1);
    throw RefusedBatch(error, std::move(received));
  }
  return send_batch(arguments, call);
}

LowLatencyReceived BatchCalls::send_batch(const DispatchArguments& input,
                                          const LowLatencyCall& call) {
  const uint32_t blocks = check_call(setup_, call);
  const Handle handle = context_.batches.take();
  const Batch& batch = *handle->batch;
  handle->tokens = input.tokens;
  handle->choices_placed = context_.experts.moves_choices();
  handle->weights_published = input.topk_weights != nullptr;
  DispatchParams params{
      .call = context_.params(call),
      .x = input.x,
      .scales = input.scales,
      .topk_idx = handle->choices_placed ? batch.choices().placed : input.topk_idx,
      .idx_is_int64 = handle->choices_placed || input.idx_is_int64,
      .tokens = input.tokens,
      .tokens_max = setup_.options.tokens_max,
      .topk = setup_.options.topk,
      .experts = setup_.places(),
      .local_experts = setup_.local_experts(),
      .row = row_layout(setup_.options, input.rows),
      .out = batch.out(),
      .remote_error = context_.findings.remote_error(),
      .tail = {},
      .by = {},
      .data_blocks = 0,
      .publish_first = 0,
      .publish_blocks = 0,
      .send_teams = 0,
      .ids_shift = 0,
      .weights = input.topk_weights,
      .batch = batch.number()};
  params.out.rows_total = call.rows_total.as<int32_t>();
  params.out.waited = call.waited_cycles.as<uint64_t>();
  if (handle->choices_placed && input.tokens != 0)
    launch_placement(input, params.call, batch.choices(), call.stream);
  launch_dispatch(params, call.hook ? Part::send : Part::both, blocks, call.stream);
  if (call.hook) {
    handle->dispatch_left = params;
    handle->blocks_left = blocks;
    context_.batches.dispatches_left.push_back(handle);
  } else {
    handle->stage = Stage::dispatched;
  }
  add(totals_.dispatch_calls, 1);
  add(totals_.dispatched_tokens, input.tokens);
  return received(params, handle);
}

LowLatencyReceived BatchCalls::received(const DispatchParams& params, const Handle& handle) const {
  const uint64_t experts = setup_.local_experts(), ranks = setup_.world.size();
  const uint64_t slots = ranks * setup_.options.tokens_max;
  const bool fp8 = params.row.is_fp8();
  LowLatencyReceived received{.x = {params.out.x,
                                    fp8 ? DataType::float8_e4m3fn : DataType::bfloat16,
                                    {experts, slots, setup_.options.hidden}},
                              .source_token = {params.out.source, {experts, slots}},
                              .ranges = {params.out.ranges, DataType::int32, {experts, ranks, 2}},
                              .counts = {params.out.counts, {experts}},
                              .handle = handle};
  const uint64_t words = params.row.scale_words();
  if (fp8)
    received.scales =
        ConstTensorView(params.out.scales,
                        params.row.scales_packed() ? DataType::int32 : DataType::float32,
                        {experts, slots, words})
            .with_strides({words * slots, 1, slots});
  return received;
}

void BatchCalls::combine(const LowLatencyCombine& what, const Handle& handle,
                         const LowLatencyCall& call) {
  context_.require_calls();
  context_.batches.check(handle, Stage::dispatched);
  check_combine(setup_, what, *handle);
  const uint32_t blocks = check_call(setup_, call);
  const DispatchOut& batch = handle->batch->out();
  const uint64_t slots =
      uint64_t{setup_.local_experts()} * setup_.world.size() * setup_.options.tokens_max;
  const CombineParams params{
      .call = context_.params(call),
      .y =
          static_cast<const std::byte*>(memory_for("y", what.y, slots * setup_.options.hidden * 2)),
      .weights = handle->weights_published
                     ? batch.weights
                     : static_cast<const float*>(memory_for(
                           "topk_weights", what.topk_weights,
                           uint64_t{handle->tokens} * setup_.options.topk * sizeof(float))),
      .row_slot = batch.row_slot,
      .choices = batch.choices,
      .out = static_cast<std::byte*>(
          memory_for("out", what.out, uint64_t{handle->tokens} * setup_.options.hidden * 2)),
      .lost = static_cast<int32_t*>(
          memory_if_given("lost", what.lost, handle->tokens * sizeof(int32_t))),
      .unplaced = handle->choices_placed ? handle->batch->choices().lost : nullptr,
      .waited = call.waited_cycles.as<uint64_t>(),
      .tokens = handle->tokens,
      .tokens_max = setup_.options.tokens_max,
      .topk = setup_.options.topk,
      .experts = setup_.places(),
      .pieces = setup_.options.hidden / 8,
      .by = {},
      .streams = 0,
      .parts = 0,
      .spans = 0,
      .published = handle->weights_published,
      .batch = handle->batch->number(),
      .weights_stamp = batch.weights_stamp,
      .only_in_other = 0};
  if (!call.hook && !context_.batches.combines_left.empty())
    throw InvalidArgument("hook", "the previous combine's hook called first", "not called");
  launch_combine(params, what.logfmt, call.hook ? Part::send : Part::both, blocks, call.stream);
  if (call.hook) {
    handle->combine_left = params;
    handle->logfmt_left = what.logfmt;
    handle->blocks_left = blocks;
    handle->stage = Stage::combine_sent;
    context_.batches.combines_left.push_back(handle);
  } else {
    handle->end(Stage::combined);
  }
  add(totals_.combine_calls, 1);
}

void BatchCalls::receive(const Handle& handle, Stream stream) {
  context_.require_calls();
  const bool combines = handle && handle->stage == Stage::combine_sent;
  context_.batches.check(handle, combines ? Stage::combine_sent : Stage::dispatch_sent);
  std::deque<Handle>& left =
      combines ? context_.batches.combines_left : context_.batches.dispatches_left;
  // Staging is drained in the order of epochs.
  if (left.front() != handle)
    throw InvalidArgument("hook", "the previous call's hook called first", "not called");
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

}  // namespace tokenyard::low_latency
