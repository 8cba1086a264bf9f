/// The state behind the public handles.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "job/job_state.hpp"
#include "tokenyard/collectives.hpp"

namespace tokenyard {

struct Work::State {
  std::shared_ptr<Job::State> job;
  std::shared_ptr<collectives::Outcome> outcome;
};

struct Group::State {
  std::shared_ptr<Job::State> job;
  collectives::GroupId id = 0;
  std::string name;
  uint32_t rank = 0;
  std::chrono::nanoseconds timeout{};
  size_t eager_limit = 0;
  uint32_t ranks = 0;  ///< 0: as many as the world
  std::atomic<bool> closed = false;

  State(std::shared_ptr<Job::State> job, const collectives::GroupIdentity& identity,
        std::chrono::nanoseconds timeout, size_t eager_limit)
      : job(std::move(job)),
        id(identity.id),
        name(identity.name),
        rank(identity.self),
        timeout(timeout),
        eager_limit(eager_limit),
        ranks(static_cast<uint32_t>(identity.slots.size())) {}
  ~State() { close(); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  uint32_t size() const;
  void close();
  Work start(collectives::Call call, const CallOptions& options) const;
};

}  // namespace tokenyard
