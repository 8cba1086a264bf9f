#include "tokenyard/expert_parallel.hpp"

#include "expert_parallel/throughput/host/expert_parallel_impl.hpp"

namespace tokenyard {

ExpertParallel::ExpertParallel(World& world, const ExpertParallelOptions& options)
    : impl_(std::make_unique<Impl>(world, options)) {}
ExpertParallel::~ExpertParallel() = default;

Received ExpertParallel::dispatch(const DispatchInput& input, uint64_t stream) {
  return impl_->dispatcher.dispatch(input, Stream{stream});
}

Received ExpertParallel::dispatch(const DispatchInput& input, const Route& route, uint64_t stream) {
  return impl_->dispatcher.dispatch_again(input, route, Stream{stream});
}

Received ExpertParallel::dispatch(const void* x, const Route& route, uint64_t stream) {
  const uint32_t tokens = route.state() ? route.tokens() : 0;
  return dispatch(DispatchInput{.x = x, .tokens = tokens}, route, stream);
}

void ExpertParallel::combine(const CombineInput& input, const Route& route,
                             const CombineOutput& output, uint64_t stream) {
  impl_->combiner.combine(input, route, output, Stream{stream});
}

void ExpertParallel::combine(const void* y, const Route& route, void* out, const float* weights,
                             float* out_weights, uint64_t stream) {
  combine({.y = y, .weights = weights}, route, {.x = out, .topk_weights = out_weights}, stream);
}

std::shared_ptr<void> ExpertParallel::output_buffer(const Route& route, uint64_t stream,
                                                    ElementType type) {
  return impl_->combiner.output_buffer(route, type, Stream{stream});
}

ExpertRows ExpertParallel::expand(const Received& received, const ExpandOptions& options,
                                  uint64_t stream) {
  return impl_->grouper.expand(received, options, Stream{stream});
}

RowsByExpert ExpertParallel::dispatch_by_expert(const DispatchInput& input,
                                                const ExpandOptions& options, uint64_t stream) {
  return impl_->grouper.dispatch_by_expert(input, options, Stream{stream});
}

ExpertParallel::Memory ExpertParallel::memory(const RowFormat& format, uint32_t tokens,
                                              uint32_t rows_received) const {
  return impl_->dispatcher.memory(format, tokens, rows_received);
}

void ExpertParallel::set_expert_map(std::span<const int32_t> expert_at) {
  impl_->failures.check();
  impl_->experts.set(expert_at);
}

ExpertParallel::Load ExpertParallel::load() const {
  return impl_->context.observation.load();
}
void ExpertParallel::trace_calls(bool on) {
  impl_->context.observation.trace_calls(on);
}
std::vector<ExpertParallel::Moment> ExpertParallel::last_trace() const {
  return impl_->context.observation.last_trace();
}

void ExpertParallel::check() {
  impl_->failures.check();
}
void ExpertParallel::wait(uint64_t stream) {
  impl_->context.wait(Stream{stream});
  impl_->failures.check();
}

const ExpertParallelOptions& ExpertParallel::options() const {
  return impl_->context.setup.options;
}
uint32_t ExpertParallel::local_experts() const {
  return impl_->context.setup.local_experts();
}
uint32_t ExpertParallel::first_expert() const {
  return impl_->context.setup.partition.first_of(world().rank());
}
uint32_t ExpertParallel::sms() const {
  return impl_->context.setup.plan.blocks;
}
const std::string& ExpertParallel::sms_reason() const {
  return impl_->context.setup.plan.reason;
}
World& ExpertParallel::world() const {
  return impl_->context.setup.world;
}

}  // namespace tokenyard
