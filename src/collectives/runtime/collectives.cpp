#include "tokenyard/collectives.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "collectives/runtime/group_state.hpp"

namespace tokenyard {

std::unique_ptr<Collectives> Collectives::connect(const CollectivesOptions& options) {
  return Job::connect(options)->collectives();
}

std::unique_ptr<Collectives> Collectives::join(const CollectivesOptions& options) {
  return Job::join(options)->collectives();
}

std::unique_ptr<Collectives> Collectives::alone(const CollectivesOptions& options) {
  return Job::alone(options)->collectives();
}

Group Collectives::world() const {
  return Group(std::make_shared<Group::State>(
      job_->state(), collectives::GroupIdentity{.id = 0, .name = "world", .self = rank()},
      job_->state()->options.timeout, job_->state()->options.eager_limit));
}

Group Collectives::group(std::span<const uint32_t> ranks, const std::string& name,
                         std::optional<std::chrono::nanoseconds> timeout,
                         std::optional<size_t> eager_limit) {
  const uint32_t slots = size();
  std::vector<uint32_t> sorted(ranks.begin(), ranks.end());
  std::sort(sorted.begin(), sorted.end());
  if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) {
    throw InvalidArgument("ranks", "distinct ranks", "a duplicate");
  }
  if (!sorted.empty() && sorted.back() >= slots) {
    throw InvalidArgument("ranks", fmt::format("ranks of {}", slots),
                          fmt::to_string(sorted.back()));
  }
  const auto self = std::find(ranks.begin(), ranks.end(), rank());
  if (self == ranks.end()) {
    throw InvalidArgument("ranks", fmt::format("a list with this rank, {}", rank()), "only others");
  }
  collectives::GroupIdentity identity = {.name = name,
                                         .slots = {ranks.begin(), ranks.end()},
                                         .self = static_cast<uint32_t>(self - ranks.begin())};
  const std::shared_ptr<Job::State>& state = job_->state();
  const std::chrono::nanoseconds limit = timeout.value_or(state->options.timeout);
  const size_t eager = eager_limit.value_or(state->options.eager_limit);
  collectives::check_eager_limit(eager);
  collectives::Engine& engine = state->engine();
  const auto founding = engine.found_group(identity, limit);
  state->progress_thread().launched();
  const auto made = [&] {
    engine.end_founding(founding);
    identity.id = founding->id;
  };
  try {
    // A newcomer to a group that is already in use has missed the founding barrier.
    if (founding->barrier) {
      Work(std::make_shared<Work::State>(Work::State{state, founding->barrier})).wait();
    }
  } catch (...) {
    made();
    throw;
  }
  made();
  return Group(std::make_shared<Group::State>(state, identity, limit, eager));
}

CollectivesCounters Collectives::counters() const {
  CollectivesCounters counters = job_->state()->engine().counters();
  counters.refused = job_->state()->refused();
  return counters;
}

std::unique_ptr<Collectives> Job::collectives() {
  return std::make_unique<Collectives>(shared_from_this());
}

}  // namespace tokenyard
