/// What stands behind the public handles.
#pragma once

#include <memory>
#include <string>

#include "collectives/machine.hpp"
#include "tokenyard/collectives.hpp"

namespace tokenyard {

struct Work::State {
  std::shared_ptr<collectives::Machine> machine;
  std::shared_ptr<collectives::Outcome> outcome;
};

struct Group::State {
  std::shared_ptr<collectives::Machine> machine;
  collectives::GroupId id = 0;
  std::string name;
  uint32_t rank = 0;
  std::chrono::nanoseconds timeout{};

  uint32_t size() const;
  Work start(collectives::Call call, const CallOptions& options) const;
};

struct Collectives::Parts {
  std::shared_ptr<collectives::Machine> machine;
};

}  // namespace tokenyard
