/// What a dispatch gives back, as Python holds it.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>

#include "tokenyard/expert_parallel.hpp"
#include "upon_world.hpp"

namespace tokenyard::python {

/// A rank's ExpertParallel.
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

/// What was received, and the exchange whose arena it lies in.
struct HeldReceived {
  std::shared_ptr<Exchange> exchange;
  Received received;
};

/// Rows grouped by expert, and the exchange whose arena they lie in.
struct HeldExpertRows {
  std::shared_ptr<Exchange> exchange;
  ExpertRows rows;
};

/// An array in the arena of the exchange's rank; `memory` and the exchange live until the last view
/// of it has died. Rows cross as bytes: NumPy's buffers know no BF16.
template <class Element>
nanobind::object arena_array(const std::shared_ptr<Exchange>& exchange,
                             const std::shared_ptr<void>& memory, const Element* data,
                             std::initializer_list<size_t> shape);

}  // namespace tokenyard::python
