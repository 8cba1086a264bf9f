/// Arguments of calls, checked before anything is launched.
#include <fmt/format.h>

#include <algorithm>

#include "expert_parallel/common/caller_memory.hpp"
#include "expert_parallel/low_latency/host/call_context.hpp"

namespace tokenyard {

namespace {

constexpr uint64_t kPieceAlignment = 16;

const char* name_of(LowLatencyHandle::Stage stage) {
  switch (stage) {
    case LowLatencyHandle::Stage::dispatch_sent:
      return "a dispatch whose hook is to be called";
    case LowLatencyHandle::Stage::dispatched:
      return "a batch that was dispatched";
    case LowLatencyHandle::Stage::combine_sent:
      return "a combine whose hook is to be called";
    case LowLatencyHandle::Stage::combined:
      return "a batch that was combined";
    case LowLatencyHandle::Stage::ended:
      break;
  }
  return "a batch that ended when ranks were unmasked or calls restarted";
}

}  // namespace

void LowLatency::Parts::check_input(const LowLatencyInput& input) const {
  if (input.tokens > options.tokens_max)
    throw InvalidArgument("tokens", fmt::format("at most tokens_max = {}", options.tokens_max),
                          std::to_string(input.tokens));
  if (input.rows == LowLatencyRows::bf16 && input.scales != nullptr)
    throw InvalidArgument("scales", "none with BF16 rows", "some");
  const low_latency::RowLayout row = low_latency::row_layout(options, input.rows);
  require_pointer(input.x, "x", uint64_t{input.tokens} * options.hidden, kPieceAlignment);
  if (input.scales != nullptr)
    require_pointer(input.scales, "scales", uint64_t{input.tokens} * row.scale_words(), 4);
  require_pointer(input.topk_idx, "topk_idx", uint64_t{input.tokens} * options.topk,
                  input.idx_is_int64 ? 8 : 4);
  if (input.weights != nullptr)
    require_pointer(input.weights, "weights", uint64_t{input.tokens} * options.topk, 4);
}

/// In another format nothing could be received.
void LowLatency::Parts::require_format(LowLatencyRows rows) const {
  if (rows == LowLatencyRows::bf16 && !options.bf16_rows)
    throw InvalidArgument("rows", "FP8, since bf16_rows is off", "BF16");
}

void LowLatency::Parts::check_combine(const LowLatencyCombine& what,
                                      const LowLatencyHandle& handle) const {
  const uint64_t rows = uint64_t{local_experts()} * world.size() * options.tokens_max;
  require_pointer(what.y, "y", rows * options.hidden, kPieceAlignment);
  if (handle.weights_told && what.weights != nullptr)
    throw InvalidArgument("weights", "none, since the dispatch had them", "some");
  if (!handle.weights_told)
    require_pointer(what.weights, "weights", uint64_t{handle.tokens} * options.topk, 4);
  require_pointer(what.out, "out", uint64_t{handle.tokens} * options.hidden, kPieceAlignment);
  const uint64_t row_bytes = uint64_t{options.hidden} * 2;
  require_apart("out", what.out, handle.tokens * row_bytes, "y", what.y, rows * row_bytes);
  if (what.lost != nullptr) require_pointer(what.lost, "lost", handle.tokens, 4);
}

void LowLatency::Parts::check_handle(const Handle& handle, LowLatencyHandle::Stage stage) const {
  if (!handle || handle->made_by != this)
    throw InvalidArgument("handle", "one that a dispatch of this object made",
                          handle ? "one of another object" : "an empty one");
  if (handle->stage != stage)
    throw InvalidArgument("handle", name_of(stage), name_of(handle->stage));
}

uint32_t LowLatency::Parts::check_call(const LowLatencyCall& call) const {
  if (!call.active.empty()) {
    if (call.active.size() != world.size())
      throw InvalidArgument("active", fmt::format("{} ranks", world.size()),
                            std::to_string(call.active.size()));
    if (!call.active[world.rank()])
      throw InvalidArgument("active", "this rank among them", "without it");
  }
  if (call.timeout && call.timeout->count() <= 0)
    throw InvalidArgument("timeout", "more than 0", fmt::format("{} ns", call.timeout->count()));
  if (call.waited_cycles != nullptr)
    require_pointer(call.waited_cycles, "waited_cycles", world.size(), sizeof(uint64_t));
  if (call.span_ns != nullptr) require_pointer(call.span_ns, "span_ns", 4, sizeof(uint64_t));
  const uint32_t blocks = call.sms != 0 ? call.sms : plan_.blocks_max;
  low_latency::require_sms(plan_, blocks);
  return blocks;
}

void LowLatency::Parts::check_dispatch_call(const LowLatencyCall& call, uint32_t blocks) const {
  if (call.rows_total != nullptr)
    require_pointer(call.rows_total, "rows_total", local_experts(), 4);
  if (call.sms == 0) return;  // As many blocks as the object was made for.
  // Of two parts the second receives on all its blocks, or on fewer that have the memory, too.
  const low_latency::Part part = call.hook ? low_latency::Part::receive : low_latency::Part::both;
  low_latency::require_shared_memory(plan_, part, blocks);
}

}  // namespace tokenyard
