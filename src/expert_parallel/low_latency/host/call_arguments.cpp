#include "expert_parallel/low_latency/host/call_arguments.hpp"

#include <fmt/format.h>

#include "base/tensor_arguments.hpp"
#include "expert_parallel/low_latency/host/options.hpp"

namespace tokenyard::low_latency {

namespace {

constexpr uint64_t kPieceAlignment = 16;

}  // namespace

DispatchArguments checked_input(const Setup& setup, const LowLatencyInput& input) {
  const uint64_t tokens = input.x.given() ? input.x.shape[0] : 0;
  if (tokens > setup.options.tokens_max)
    throw InvalidArgument("tokens",
                          fmt::format("at most tokens_max = {}", setup.options.tokens_max),
                          std::to_string(tokens));
  if (input.rows == LowLatencyRows::bf16 && input.scales.given())
    throw InvalidArgument("scales", "none with BF16 rows", "some");
  const RowLayout row = row_layout(setup.options, input.rows);
  const bool cast = !input.scales.given();
  require_view("x", input.x, {cast ? DataType::bfloat16 : DataType::float8_e4m3fn},
               {tokens, setup.options.hidden}, kPieceAlignment);
  if (input.scales.given())
    require_view("scales", input.scales,
                 {row.scales_packed() ? DataType::int32 : DataType::float32},
                 {tokens, row.scale_words()}, 4);
  require_view("topk_idx", input.topk_idx, {DataType::int64, DataType::int32},
               {tokens, setup.options.topk}, bytes_of(input.topk_idx.type));
  if (input.topk_weights.given())
    require_view("topk_weights", input.topk_weights, {DataType::float32},
                 {tokens, setup.options.topk}, 4);
  const uint64_t elements = tokens * setup.options.hidden, choices = tokens * setup.options.topk;
  return {
      .x = static_cast<const std::byte*>(memory_for("x", input.x, elements * (cast ? 2 : 1))),
      .scales = memory_if_given("scales", input.scales, tokens * row.scale_words() * 4),
      .topk_idx = memory_for("topk_idx", input.topk_idx, choices * bytes_of(input.topk_idx.type)),
      .idx_is_int64 = input.topk_idx.type != DataType::int32,
      .topk_weights = static_cast<const float*>(
          memory_if_given("topk_weights", input.topk_weights, choices * sizeof(float))),
      .tokens = static_cast<uint32_t>(tokens),
      .rows = input.rows};
}

void require_format(const Setup& setup, LowLatencyRows rows) {
  if (rows == LowLatencyRows::bf16 && !setup.options.bf16_rows)
    throw InvalidArgument("rows", "FP8, since bf16_rows is off", "BF16");
}

void check_combine(const Setup& setup, const LowLatencyCombine& what,
                   const LowLatencyHandle& handle) {
  const uint64_t slots = uint64_t{setup.world.size()} * setup.options.tokens_max;
  const uint64_t hidden = setup.options.hidden;
  require_view("y", what.y, {DataType::bfloat16}, {setup.local_experts(), slots, hidden},
               kPieceAlignment);
  if (handle.weights_published && what.topk_weights.given())
    throw InvalidArgument("topk_weights", "none, since the dispatch had them", "some");
  if (!handle.weights_published)
    require_view("topk_weights", what.topk_weights, {DataType::float32},
                 {handle.tokens, setup.options.topk}, 4);
  require_view("out", what.out, {DataType::bfloat16}, {handle.tokens, hidden}, kPieceAlignment);
  require_no_overlap("out", what.out.data, what.out.bytes(), "y", what.y.data, what.y.bytes());
  if (what.lost.given()) require_view("lost", what.lost, {DataType::int32}, {handle.tokens}, 4);
}

uint32_t check_call(const Setup& setup, const LowLatencyCall& call) {
  if (!call.active.empty()) {
    if (call.active.size() != setup.world.size())
      throw InvalidArgument("active", fmt::format("{} ranks", setup.world.size()),
                            std::to_string(call.active.size()));
    if (!call.active[setup.world.rank()])
      throw InvalidArgument("active", "a list that includes this rank", "one without it");
  }
  if (call.timeout && call.timeout->count() <= 0)
    throw InvalidArgument("timeout", "more than 0", fmt::format("{} ns", call.timeout->count()));
  if (call.waited_cycles.given())
    require_view("waited_cycles", call.waited_cycles, {DataType::uint64, DataType::int64},
                 {setup.world.size()}, sizeof(uint64_t));
  if (call.span_ns.given())
    require_view("span_ns", call.span_ns, {DataType::uint64}, {2, 2}, sizeof(uint64_t));
  const uint32_t blocks = call.sms != 0 ? call.sms : setup.plan.blocks_max;
  require_sms(setup.plan, blocks);
  return blocks;
}

void check_dispatch_call(const Setup& setup, const LowLatencyCall& call, uint32_t blocks) {
  if (call.rows_total.given())
    require_view("rows_total", call.rows_total, {DataType::int32}, {setup.local_experts()}, 4);
  if (call.sms == 0) return;  // The object's own number of blocks.
  // A call in two parts receives on all its blocks, or on fewer that also have the memory.
  const Part part = call.hook ? Part::receive : Part::both;
  require_shared_memory(setup.plan, part, blocks);
}

}  // namespace tokenyard::low_latency
