/// A World as Python holds it.
#pragma once

#include <memory>

#include "callers.hpp"
#include "tokenyard/world.hpp"

namespace tokenyard::python {

/// Shared by the Python object, the objects built upon it and the arrays that lie in its arena: the
/// World goes when the last of them has gone, so an array outlives `close`.
class WorldHandle {
 public:
  explicit WorldHandle(std::unique_ptr<World> world);
  /// Throws InvalidArgument once closed.
  const std::shared_ptr<World>& get() const;
  /// For a call that may wait, or that launches; see Callers.
  Callers::Turn turn() const { return Callers::Turn(*callers_); }
  const std::shared_ptr<Callers>& callers() const { return callers_; }
  bool closed() const { return world_ == nullptr; }
  /// Gives up this handle's share.
  void close() { world_.reset(); }

 private:
  std::shared_ptr<World> world_;
  std::shared_ptr<Callers> callers_ = std::make_shared<Callers>();
};

}  // namespace tokenyard::python
