#include "tokenyard/low_latency.hpp"

#include "base/trace_range.hpp"
#include "expert_parallel/low_latency/host/low_latency_impl.hpp"
#include "expert_parallel/low_latency/host/options.hpp"

namespace tokenyard {

LowLatency::LowLatency(World& world, const LowLatencyOptions& options)
    : impl_(std::make_unique<Impl>(world, options)) {}
LowLatency::~LowLatency() = default;

LowLatencyReceived LowLatency::dispatch(const LowLatencyInput& input, const LowLatencyCall& call) {
  const TraceRange range("LowLatency.dispatch");
  return impl_->batch_calls.dispatch(input, call);
}
void LowLatency::combine(const LowLatencyCombine& what,
                         const std::shared_ptr<LowLatencyHandle>& handle,
                         const LowLatencyCall& call) {
  const TraceRange range("LowLatency.combine");
  impl_->batch_calls.combine(what, handle, call);
}
void LowLatency::receive(const std::shared_ptr<LowLatencyHandle>& handle, Stream stream) {
  const TraceRange range("LowLatency.receive");
  impl_->batch_calls.receive(handle, stream);
}
TensorView LowLatency::combine_buffer(const std::shared_ptr<LowLatencyHandle>& handle) {
  return impl_->context.batches.combine_buffer(handle);
}

std::vector<FailedRank> LowLatency::failed_ranks() const {
  return impl_->context.masks.list();
}
LowLatency::Metrics LowLatency::metrics() const {
  Metrics metrics = impl_->batch_calls.totals();
  const uint32_t ranks = impl_->context.setup.world.size();
  for (uint32_t rank = 0; rank < ranks; ++rank)
    metrics.masked_by_peer.push_back(impl_->context.masks.masked(rank) ? 1 : 0);
  return metrics;
}
void LowLatency::write_mask(TensorView out, Stream stream) {
  const TraceRange range("LowLatency.write_mask");
  impl_->mask_calls.write_mask(out, stream);
}
void LowLatency::update_mask(uint32_t rank, bool masked) {
  const TraceRange range("LowLatency.update_mask");
  impl_->mask_calls.update_mask(rank, masked);
}
void LowLatency::clear_mask() {
  const TraceRange range("LowLatency.clear_mask");
  impl_->mask_calls.clear_mask();
}
uint32_t LowLatency::epoch() {
  return impl_->mask_calls.epoch();
}
void LowLatency::restart(uint32_t epoch) {
  const TraceRange range("LowLatency.restart");
  impl_->mask_calls.restart(epoch);
}

void LowLatency::set_expert_map(std::span<const int32_t> expert_at) {
  const TraceRange range("LowLatency.set_expert_map");
  impl_->mask_calls.set_expert_map(expert_at);
}
std::vector<int32_t> LowLatency::expert_map() const {
  return impl_->context.experts.expert_at();
}
std::vector<int32_t> LowLatency::held_experts() const {
  return impl_->context.experts.held_by(world().rank());
}
std::vector<uint32_t> LowLatency::lost_experts() const {
  return impl_->context.experts.lost();
}
void LowLatency::on_experts_changed(std::function<void(const std::vector<int32_t>& held)> hook) {
  impl_->mask_calls.held.hook = std::move(hook);
}
void LowLatency::evict(const std::vector<uint32_t>& ranks, std::optional<uint32_t> epoch) {
  const TraceRange range("LowLatency.evict");
  impl_->mask_calls.evict(ranks, epoch);
}
std::vector<uint32_t> LowLatency::admit() {
  const TraceRange range("LowLatency.admit");
  return impl_->mask_calls.admit();
}

void LowLatency::check() {
  impl_->context.check();
}
void LowLatency::wait(Stream stream) {
  const TraceRange range("LowLatency.wait");
  impl_->context.wait(stream);
}
void LowLatency::close() {
  const TraceRange range("LowLatency.close");
  impl_->context.close();
}

uint32_t LowLatency::local_experts() const {
  return impl_->context.setup.local_experts();
}
uint32_t LowLatency::first_expert() const {
  return impl_->context.setup.first_expert();
}

LowLatency::Memory LowLatency::memory(const LowLatencyOptions& options, uint32_t ranks) {
  low_latency::check_options(options, ranks);
  return {.arena_bytes = low_latency::window_layout(options, ranks).bytes(),
          .device_bytes = 2 * low_latency::Batch::bytes(options, ranks) +
                          sizeof(low_latency::Workspace) +
                          ExpertMap::device_bytes(options.experts, places_of(options, ranks)),
          .combine_buffer_bytes = low_latency::Batch::combine_bytes(options, ranks)};
}

const LowLatencyOptions& LowLatency::options() const {
  return impl_->context.setup.options;
}
World& LowLatency::world() const {
  return impl_->context.setup.world;
}

}  // namespace tokenyard
