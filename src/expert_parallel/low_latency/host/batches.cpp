#include "expert_parallel/low_latency/host/batches.hpp"

#include <fmt/format.h>

#include "fabric/collective_step.hpp"

namespace tokenyard::low_latency {

using Stage = LowLatencyHandle::Stage;

namespace {

const char* name_of(LowLatencyHandle::Stage stage) {
  switch (stage) {
    case LowLatencyHandle::Stage::dispatch_sent:
      return "a dispatch whose hook has not been called";
    case LowLatencyHandle::Stage::dispatched:
      return "a batch that was dispatched";
    case LowLatencyHandle::Stage::combine_sent:
      return "a combine whose hook has not been called";
    case LowLatencyHandle::Stage::combined:
      return "a batch that was combined";
    case LowLatencyHandle::Stage::outlived:
      return "a batch of before the ranks changed: dispatch again";
    case LowLatencyHandle::Stage::ended:
      break;
  }
  return "a batch that ended when ranks were unmasked or calls restarted";
}

constexpr const char* kMemory = "LowLatency: batches";

}  // namespace

Batches::Batches(const Setup& setup) : setup_(setup) {
  collective_step(setup.world, kMemory, [&] {
    for (uint32_t number = 0; number < batches_.size(); ++number)
      batches_[number] =
          std::make_shared<Batch>(setup.accelerator, setup.options, setup.world.size(), number);
  });
}

void Batches::accompany(World& world) {
  accompany_step(world, kMemory);
}

Batches::Handle Batches::take() {
  for (const auto& batch : batches_) {
    if (!batch->holder.expired()) continue;
    const auto handle = std::make_shared<LowLatencyHandle>(batch, this);
    batch->holder = handle;
    return handle;
  }
  throw InvalidArgument("handle", "at most two batches that are neither combined nor dropped",
                        "a third one");
}

void Batches::check(const Handle& handle, LowLatencyHandle::Stage stage) const {
  const bool ended = handle && (handle->stage == Stage::ended || handle->stage == Stage::outlived);
  if (!ended && (!handle || handle->made_by != this))
    throw InvalidArgument("handle", "a handle from a dispatch of this object",
                          handle ? "a handle of another object" : "an empty handle");
  if (handle->stage != stage)
    throw InvalidArgument("handle", name_of(stage), name_of(handle->stage));
}

TensorView Batches::combine_buffer(const Handle& handle) const {
  if (!handle || handle->made_by != this || !handle->batch)
    throw InvalidArgument("handle", "a handle of a batch in progress of this object",
                          "another handle");
  const uint64_t slots = uint64_t{setup_.world.size()} * setup_.options.tokens_max;
  return {handle->batch->combine_buffer(),
          DataType::bfloat16,
          {setup_.local_experts(), slots, setup_.options.hidden}};
}

void Batches::end(Stage how) {
  for (const auto& batch : batches_)
    if (const Handle handle = batch->holder.lock()) handle->end(how);
  dispatches_left.clear();
  combines_left.clear();
}

/// Makes captured combines, which no handle stops, send nothing for other ranks' tokens: their
/// owners miss the sums and count the choices as lost. This rank's own tokens lose nothing and
/// would count nothing.
void Batches::forget_rows(Stream stream) const {
  const size_t row_slots = size_t{setup_.options.tokens_max} * setup_.options.topk;
  for (const auto& batch : batches_)
    for (uint32_t rank = 0; rank < setup_.world.size(); ++rank)
      if (rank != setup_.world.rank())
        setup_.accelerator.fill(batch->out().row_slot + rank * row_slots, 0xff,
                                row_slots * sizeof(*batch->out().row_slot), stream);
}

void Batches::require_hooks_called(const char* asked) const {
  if (dispatches_left.empty() && combines_left.empty()) return;
  throw InvalidArgument("hook", fmt::format("called before {}", asked), "not called");
}

}  // namespace tokenyard::low_latency
