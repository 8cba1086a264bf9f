#include "tokenyard/low_latency.hpp"

#include "expert_parallel/low_latency/host/call_context.hpp"

namespace tokenyard {

LowLatency::LowLatency(World& world, const LowLatencyOptions& options)
    : parts_(std::make_unique<Parts>(world, options)) {}
LowLatency::~LowLatency() = default;

LowLatencyReceived LowLatency::dispatch(const LowLatencyInput& input, const LowLatencyCall& call) {
  return parts_->dispatch(input, call);
}
void LowLatency::combine(const LowLatencyCombine& what,
                         const std::shared_ptr<LowLatencyHandle>& handle,
                         const LowLatencyCall& call) {
  parts_->combine(what, handle, call);
}
void LowLatency::receive(const std::shared_ptr<LowLatencyHandle>& handle, uint64_t stream) {
  parts_->receive(handle, Stream{stream});
}
void* LowLatency::combine_buffer(const std::shared_ptr<LowLatencyHandle>& handle) {
  return parts_->combine_buffer(handle);
}

std::vector<MaskedRank> LowLatency::masked() const {
  return parts_->masked();
}
void LowLatency::write_mask(int32_t* out, uint64_t stream) {
  parts_->write_mask(out, Stream{stream});
}
void LowLatency::update_mask(uint32_t rank, bool masked) {
  parts_->update_mask(rank, masked);
}
void LowLatency::clear_mask() {
  parts_->clear_mask();
}
uint32_t LowLatency::epoch() {
  return parts_->epoch();
}
void LowLatency::restart(uint32_t epoch) {
  parts_->restart(epoch);
}

void LowLatency::check() {
  parts_->check();
}
void LowLatency::wait(uint64_t stream) {
  parts_->wait(Stream{stream});
}
void LowLatency::close() {
  parts_->close();
}

uint32_t LowLatency::local_experts() const {
  return parts_->local_experts();
}
uint32_t LowLatency::first_expert() const {
  return parts_->first_expert();
}

const LowLatencyOptions& LowLatency::options() const {
  return parts_->options;
}
World& LowLatency::world() const {
  return parts_->world;
}

}  // namespace tokenyard
