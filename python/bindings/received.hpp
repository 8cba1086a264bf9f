/// Python's handles of a dispatch's results.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>

#include "tokenyard/expert_parallel.hpp"
#include "upon_world.hpp"

namespace tokenyard::python {

/// A rank's ExpertParallel and its World.
struct Exchange : UponWorld {
  Exchange(UponWorld upon, const ExpertParallelOptions& options)
      : UponWorld(std::move(upon)), expert_parallel(*world, options) {}
  ExpertParallel expert_parallel;
};

/// A route and the exchange it belongs to.
struct HeldRoute {
  std::shared_ptr<Exchange> exchange;
  Route route;
};

/// Received rows, and the exchange whose arena holds them.
struct HeldReceived {
  std::shared_ptr<Exchange> exchange;
  Received received;
};

/// Rows grouped by expert, and the exchange whose arena holds them.
struct HeldExpertRows {
  std::shared_ptr<Exchange> exchange;
  ExpertRows rows;
};

/// Returns an array in the arena of the exchange's rank; its last view keeps `memory` and the
/// exchange alive. Rows cross as bytes, since NumPy's buffer protocol has no BF16.
template <class Element>
nanobind::object arena_array(const std::shared_ptr<Exchange>& exchange,
                             const std::shared_ptr<void>& memory, const Element* data,
                             std::initializer_list<size_t> shape);

}  // namespace tokenyard::python
