#include "tokenyard/job.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "control/host_secret.hpp"
#include "control/memory_store.hpp"
#include "job/job_state.hpp"
#include "net/key.hpp"

namespace tokenyard {

namespace {

std::vector<uint32_t> slots_of(const control::View& view) {
  std::vector<uint32_t> slots;
  for (const control::Member& member : view.members) slots.push_back(member.slot);
  return slots;
}

JobOptions with_secret(JobOptions options) {
  options.secret = control::required_secret(options.secret);
  return options;
}

}  // namespace

std::shared_ptr<Job> Job::connect(const JobOptions& options) {
  return std::make_shared<Job>(std::make_shared<State>(with_secret(options), JobTerms{}));
}

std::shared_ptr<Job> Job::join(const JobOptions& options) {
  return std::make_shared<Job>(std::make_shared<State>(
      with_secret(options), JobTerms{.entrance = JobTerms::Entrance::join}));
}

std::shared_ptr<Job> Job::alone(const JobOptions& options) {
  JobOptions unseen = options;
  // Nobody can join it, since nobody sees its store.
  if (unseen.secret.empty()) unseen.secret = fmt::format("{:016x}", net::random_number());
  unseen.own_store = std::make_shared<control::MemoryStore>();
  return std::make_shared<Job>(
      std::make_shared<State>(unseen, JobTerms{.entrance = JobTerms::Entrance::alone}));
}

Job::Job(std::shared_ptr<State> state) : state_(std::move(state)) {}

Job::~Job() {
  try {
    state_->close();
  } catch (const std::exception&) {
    // A destructor cannot report an error; sockets and threads are closed all the same.
  }
}

uint32_t Job::rank() const {
  return state_->options.rank;
}

uint32_t Job::size() const {
  return state_->engine().view().slots;
}

std::vector<uint32_t> Job::active_ranks() const {
  return slots_of(state_->engine().view());
}

std::vector<uint32_t> Job::waiting() const {
  return state_->metrics().waiting;
}

uint64_t Job::epoch() const {
  return state_->engine().view().epoch;
}

std::shared_ptr<void> Job::on_change(std::function<void()> call) {
  return state_->on_change(std::move(call));
}

std::vector<uint32_t> Job::shrink() {
  const auto call = state_->recovery().shrink();
  state_->await(*call);
  state_->note_recovery();
  return slots_of(state_->engine().recovered());
}

void Job::replace(uint32_t rank, std::optional<std::chrono::nanoseconds> timeout) {
  const auto call = state_->recovery().replace(rank);
  state_->await(*call, timeout);
  state_->note_recovery();
}

void Job::grow(uint32_t ranks, std::optional<std::chrono::nanoseconds> timeout) {
  const uint32_t most = std::max(state_->options.size, state_->options.size_max);
  const auto call = state_->recovery().grow(ranks, most);
  state_->await(*call, timeout);
  state_->note_recovery();
}

std::vector<uint32_t> Job::recover(bool wait_for_replacements,
                                   std::optional<std::chrono::nanoseconds> timeout) {
  const std::chrono::nanoseconds most = timeout.value_or(state_->options.timeout);
  const auto until = std::chrono::steady_clock::now() + most;
  do {
    const auto call = state_->recovery().recover(wait_for_replacements);
    state_->await(*call, timeout);
  } while (state_->await_verdict_on_gone(until));
  state_->note_recovery();
  return active_ranks();
}

void Job::evict(uint32_t rank, std::optional<std::chrono::nanoseconds> timeout) {
  if (rank == state_->options.rank) {
    throw InvalidArgument("rank", "another rank; call leave to remove this one",
                          fmt::to_string(rank));
  }
  const auto call = state_->recovery().evict(rank);
  state_->await(*call, timeout);
}

void Job::leave() {
  // The other ranks' threads receive small messages whatever their programs do meanwhile.
  state_->leave(
      std::min<std::chrono::nanoseconds>(state_->options.timeout, std::chrono::seconds(5)),
      "after leave");
}

void Job::cancel() {
  state_->engine().cancel(std::make_exception_ptr(Cancelled("cancel")));
}

JobMetrics Job::metrics() const {
  return state_->metrics();
}

}  // namespace tokenyard
