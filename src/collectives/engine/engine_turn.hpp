/// The engine's lock for code that may end operations.
#pragma once

#include <memory>
#include <vector>

#include "collectives/engine/engine.hpp"

namespace tokenyard::collectives {

/// Holds the lock, and announces finished outcomes after releasing it.
class Engine::Turn {
 public:
  explicit Turn(Engine& engine, bool patiently = false) : engine_(engine) {
    patiently ? engine.mutex_.lock_patiently() : engine.mutex_.lock();
  }
  ~Turn() {
    std::vector<std::shared_ptr<Outcome>> finished;
    finished.swap(engine_.context_.finished);
    engine_.mutex_.unlock();
    for (const std::shared_ptr<Outcome>& outcome : finished) outcome->announce();
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  Engine& engine_;
};

}  // namespace tokenyard::collectives
