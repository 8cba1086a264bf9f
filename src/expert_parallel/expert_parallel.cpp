#include "tokenyard/expert_parallel.hpp"

#include "expert_parallel/exchange.hpp"

namespace tokenyard {

ExpertParallel::ExpertParallel(World& world, const ExpertParallelOptions& options)
    : parts_(std::make_unique<Parts>(world, options)) {}
ExpertParallel::~ExpertParallel() = default;

Received ExpertParallel::dispatch(const DispatchInput& input, uint64_t stream) {
  return parts_->dispatch(input, Stream{stream});
}

Received ExpertParallel::dispatch(const void* x, const Route& route, uint64_t stream) {
  return parts_->dispatch_again(x, route, Stream{stream});
}

void ExpertParallel::combine(const void* y, const Route& route, void* out, const float* weights,
                             float* out_weights, uint64_t stream) {
  parts_->combine(y, route, out, weights, out_weights, Stream{stream});
}

std::shared_ptr<void> ExpertParallel::output_buffer(const Route& route, uint64_t stream) {
  return parts_->output_buffer(route, Stream{stream});
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
uint32_t ExpertParallel::sms() const {
  return parts_->plan.blocks;
}
World& ExpertParallel::world() const {
  return parts_->world;
}

uint32_t Route::tokens() const {
  return state_->tokens;
}
uint32_t Route::rows_received() const {
  return state_->rows;
}

}  // namespace tokenyard
