#include "base/trace_range.hpp"
#include "collectives/runtime/group_state.hpp"

namespace tokenyard {

void Work::wait() {
  const TraceRange range("Work.wait");
  state_->job->progress_thread().wait(*state_->outcome, std::nullopt);
  if (const std::exception_ptr error = state_->outcome->error()) std::rethrow_exception(error);
}

bool Work::wait_for(std::chrono::nanoseconds time) {
  const TraceRange range("Work.wait_for");
  Job::State& job = *state_->job;
  return job.progress_thread().wait(*state_->outcome, job.engine().now() + time);
}

bool Work::done() const {
  return state_->outcome->done();
}

std::exception_ptr Work::error() const {
  return state_->outcome->error();
}

void Work::when_done(std::function<void()> call) {
  state_->outcome->when_done(std::move(call));
}

uint32_t Work::source() const {
  return state_->outcome->source();
}

std::vector<uint32_t> Work::failed_ranks() const {
  const collectives::Outcome& outcome = *state_->outcome;
  return outcome.done() && !outcome.error() ? outcome.missing_ranks() : std::vector<uint32_t>{};
}

std::string Work::choice() const {
  return state_->outcome->choice();
}

}  // namespace tokenyard
