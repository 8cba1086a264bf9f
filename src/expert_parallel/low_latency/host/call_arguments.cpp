#include "expert_parallel/low_latency/host/call_arguments.hpp"

#include <fmt/format.h>

#include "expert_parallel/common/caller_memory.hpp"
#include "expert_parallel/low_latency/host/options.hpp"

namespace tokenyard::low_latency {

namespace {

constexpr uint64_t kPieceAlignment = 16;

}  // namespace

void check_input(const Setup& setup, const LowLatencyInput& input) {
  if (input.tokens > setup.options.tokens_max)
    throw InvalidArgument("tokens",
                          fmt::format("at most tokens_max = {}", setup.options.tokens_max),
                          std::to_string(input.tokens));
  if (input.rows == LowLatencyRows::bf16 && input.scales != nullptr)
    throw InvalidArgument("scales", "none with BF16 rows", "some");
  const RowLayout row = row_layout(setup.options, input.rows);
  require_pointer(input.x, "x", uint64_t{input.tokens} * setup.options.hidden, kPieceAlignment);
  if (input.scales != nullptr)
    require_pointer(input.scales, "scales", uint64_t{input.tokens} * row.scale_words(), 4);
  require_pointer(input.topk_idx, "topk_idx", uint64_t{input.tokens} * setup.options.topk,
                  input.idx_is_int64 ? 8 : 4);
  if (input.weights != nullptr)
    require_pointer(input.weights, "weights", uint64_t{input.tokens} * setup.options.topk, 4);
}

void require_format(const Setup& setup, LowLatencyRows rows) {
  if (rows == LowLatencyRows::bf16 && !setup.options.bf16_rows)
    throw InvalidArgument("rows", "FP8, since bf16_rows is off", "BF16");
}

void check_combine(const Setup& setup, const LowLatencyCombine& what,
                   const LowLatencyHandle& handle) {
  const uint64_t rows =
      uint64_t{setup.local_experts()} * setup.world.size() * setup.options.tokens_max;
  require_pointer(what.y, "y", rows * setup.options.hidden, kPieceAlignment);
  if (handle.weights_published && what.weights != nullptr)
    throw InvalidArgument("weights", "none, since the dispatch had them", "some");
  if (!handle.weights_published)
    require_pointer(what.weights, "weights", uint64_t{handle.tokens} * setup.options.topk, 4);
  require_pointer(what.out, "out", uint64_t{handle.tokens} * setup.options.hidden, kPieceAlignment);
  const uint64_t row_bytes = uint64_t{setup.options.hidden} * 2;
  require_no_overlap("out", what.out, handle.tokens * row_bytes, "y", what.y, rows * row_bytes);
  if (what.lost != nullptr) require_pointer(what.lost, "lost", handle.tokens, 4);
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
  if (call.waited_cycles != nullptr)
    require_pointer(call.waited_cycles, "waited_cycles", setup.world.size(), sizeof(uint64_t));
  if (call.span_ns != nullptr) require_pointer(call.span_ns, "span_ns", 4, sizeof(uint64_t));
  const uint32_t blocks = call.sms != 0 ? call.sms : setup.plan.blocks_max;
  require_sms(setup.plan, blocks);
  return blocks;
}

void check_dispatch_call(const Setup& setup, const LowLatencyCall& call, uint32_t blocks) {
  if (call.rows_total != nullptr)
    require_pointer(call.rows_total, "rows_total", setup.local_experts(), 4);
  if (call.sms == 0) return;  // The object's own number of blocks.
  // A call in two parts receives on all its blocks, or on fewer that also have the memory.
  const Part part = call.hook ? Part::receive : Part::both;
  require_shared_memory(setup.plan, part, blocks);
}

}  // namespace tokenyard::low_latency
