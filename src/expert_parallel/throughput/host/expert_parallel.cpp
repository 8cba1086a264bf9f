#include "tokenyard/expert_parallel.hpp"

#include "expert_parallel/throughput/host/route_state.hpp"

namespace tokenyard {

ExpertParallel::ExpertParallel(World& world, const ExpertParallelOptions& options)
    : parts_(std::make_unique<Parts>(world, options)) {}
ExpertParallel::~ExpertParallel() = default;

Received ExpertParallel::dispatch(const DispatchInput& input, uint64_t stream) {
  return parts_->dispatch(input, Stream{stream});
}

Received ExpertParallel::dispatch(const DispatchInput& input, const Route& route, uint64_t stream) {
  return parts_->dispatch_again(input, route, Stream{stream});
}

Received ExpertParallel::dispatch(const void* x, const Route& route, uint64_t stream) {
  const uint32_t tokens = route.state() ? route.tokens() : 0;
  return parts_->dispatch_again({.x = x, .tokens = tokens}, route, Stream{stream});
}

void ExpertParallel::combine(const CombineInput& input, const Route& route,
                             const CombineOutput& output, uint64_t stream) {
  parts_->combine(input, route, output, Stream{stream});
}

void ExpertParallel::combine(const void* y, const Route& route, void* out, const float* weights,
                             float* out_weights, uint64_t stream) {
  parts_->combine({.y = y, .weights = weights}, route, {.x = out, .topk_weights = out_weights},
                  Stream{stream});
}

std::shared_ptr<void> ExpertParallel::output_buffer(const Route& route, uint64_t stream,
                                                    ElementType type) {
  return parts_->output_buffer(route, type, Stream{stream});
}

ExpertRows ExpertParallel::expand(const Received& received, const ExpandOptions& options,
                                  uint64_t stream) {
  return parts_->expand(received, options, Stream{stream});
}

RowsByExpert ExpertParallel::dispatch_by_expert(const DispatchInput& input,
                                                const ExpandOptions& options, uint64_t stream) {
  return parts_->dispatch_by_expert(input, options, Stream{stream});
}

ExpertParallel::Memory ExpertParallel::memory(const RowFormat& format, uint32_t tokens,
                                              uint32_t rows_received) const {
  return parts_->memory(format, tokens, rows_received);
}

void ExpertParallel::place(std::span<const int32_t> expert_at) {
  parts_->place(expert_at);
}

ExpertParallel::Load ExpertParallel::load() const {
  return parts_->load();
}
void ExpertParallel::trace_calls(bool on) {
  parts_->trace_calls(on);
}
std::vector<ExpertParallel::Moment> ExpertParallel::last_trace() const {
  return parts_->last_trace();
}

void ExpertParallel::check() {
  parts_->check();
}

void ExpertParallel::wait(uint64_t stream) {
  parts_->wait(Stream{stream});
}

const ExpertParallelOptions& ExpertParallel::options() const {
  return parts_->options;
}
uint32_t ExpertParallel::local_experts() const {
  return parts_->local_experts();
}
uint32_t ExpertParallel::first_expert() const {
  return parts_->partition.first_of(parts_->world.rank());
}
uint32_t ExpertParallel::sms() const {
  return parts_->plan.blocks;
}
const std::string& ExpertParallel::sms_reason() const {
  return parts_->plan.reason;
}
World& ExpertParallel::world() const {
  return parts_->world;
}

const char* name_of(ElementType type) {
  switch (type) {
    case ElementType::bf16:
      return "bf16";
    case ElementType::fp16:
      return "fp16";
    case ElementType::fp32:
      return "fp32";
    case ElementType::fp8_e4m3:
      return "fp8_e4m3";
    case ElementType::bytes:
      return "bytes";
  }
  return "unknown";
}

const char* name_of(ScaleType type) {
  switch (type) {
    case ScaleType::words:
      return "words";
    case ScaleType::fp32:
      return "fp32";
    case ScaleType::int32:
      return "int32";
    case ScaleType::bytes:
      return "bytes";
  }
  return "unknown";
}

namespace {

void record(const std::shared_ptr<void>& memory, uint64_t stream) {
  if (memory != nullptr)
    std::static_pointer_cast<CallMemory>(memory)->block().record_stream(Stream{stream});
}

void record(const std::optional<Route>& route, uint64_t stream) {
  if (!route) return;
  record(route->state()->memory, stream);
}

}  // namespace

void Received::record_stream(uint64_t stream) const {
  record(owner, stream);
  record(watched, stream);
  record(route, stream);
}

void ExpertRows::record_stream(uint64_t stream) const {
  record(rows_owner, stream);
  record(owner, stream);
  record(route, stream);
}

void ExpertRows::forget_rows() {
  x = scales = nullptr;
  rows_owner.reset();
}

uint32_t Route::tokens() const {
  return state_->tokens;
}
uint32_t Route::rows_received() const {
  return state_->rows;
}
const int32_t* Route::row_on() const {
  return state_->row_on;
}

}  // namespace tokenyard
