#include "tokenyard/expert_parallel.hpp"

#include "base/trace_range.hpp"
#include "expert_parallel/throughput/host/expert_parallel_impl.hpp"

namespace tokenyard {

ExpertParallel::ExpertParallel(World& world, const ExpertParallelOptions& options)
    : impl_(std::make_unique<Impl>(world, options)) {}
ExpertParallel::~ExpertParallel() = default;

Received ExpertParallel::dispatch(const DispatchInput& input, Stream stream) {
  const TraceRange range("ExpertParallel.dispatch");
  return impl_->dispatcher.dispatch(input, stream);
}

Received ExpertParallel::dispatch(const DispatchInput& input, const Route& route, Stream stream) {
  const TraceRange range("ExpertParallel.dispatch");
  return impl_->dispatcher.dispatch_again(input, route, stream);
}

void ExpertParallel::combine(const CombineInput& input, const Route& route,
                             const CombineOutput& output, Stream stream) {
  const TraceRange range("ExpertParallel.combine");
  impl_->combiner.combine(input, route, output, stream);
}

CombineBuffer ExpertParallel::combine_buffer(const Route& route, DataType type, Stream stream) {
  return impl_->combiner.buffer(route, type, stream);
}

ExpertRows ExpertParallel::group_by_expert(const Received& received,
                                           const GroupByExpertOptions& options, Stream stream) {
  const TraceRange range("ExpertParallel.group_by_expert");
  return impl_->grouper.group_by_expert(received, options, stream);
}

RowsByExpert ExpertParallel::dispatch_by_expert(const DispatchInput& input,
                                                const GroupByExpertOptions& options,
                                                Stream stream) {
  const TraceRange range("ExpertParallel.dispatch_by_expert");
  return impl_->grouper.dispatch_by_expert(input, options, stream);
}

void ExpertParallel::set_expert_map(std::span<const int32_t> expert_at) {
  const TraceRange range("ExpertParallel.set_expert_map");
  impl_->failures.check();
  ExpertMap& experts = impl_->experts;
  experts.require_agreed(expert_at, "ExpertParallel: expert map");
  impl_->context.setup.await_stream(impl_->context.last_stream.get(),
                                    "the end of the call before its experts move");
  impl_->held.change([&] { experts.set(expert_at); });
}
std::vector<int32_t> ExpertParallel::expert_map() const {
  return impl_->experts.expert_at();
}
std::vector<int32_t> ExpertParallel::held_experts() const {
  return impl_->experts.held_by(world().rank());
}
std::vector<uint32_t> ExpertParallel::lost_experts() const {
  return impl_->experts.lost();
}
void ExpertParallel::on_experts_changed(
    std::function<void(const std::vector<int32_t>& held)> hook) {
  impl_->held.hook = std::move(hook);
}

ExpertParallel::Load ExpertParallel::load() const {
  return impl_->context.observation.load();
}
ExpertParallel::Metrics ExpertParallel::metrics() const {
  Metrics metrics = impl_->context.observation.metrics();
  metrics.unplaced_choices = impl_->experts.lost_choices_total();
  return metrics;
}
void ExpertParallel::trace_calls(bool on) {
  impl_->context.observation.trace_calls(on);
}
std::vector<ExpertParallel::Moment> ExpertParallel::last_trace() const {
  return impl_->context.observation.last_trace();
}

std::vector<FailedRank> ExpertParallel::failed_ranks() const {
  return impl_->failures.failed_ranks();
}
void ExpertParallel::check() {
  impl_->failures.check();
}
void ExpertParallel::wait(Stream stream) {
  const TraceRange range("ExpertParallel.wait");
  impl_->context.wait(stream);
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
