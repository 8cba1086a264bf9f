/// Python's handle of a World.
#pragma once

#include <memory>

#include "callers.hpp"
#include "tokenyard/world.hpp"

namespace tokenyard::python {

/// The Python object, objects made on the World and arrays in its arena share it: the World ends
/// with the last of them, so an array outlives `close`.
class WorldHandle {
 public:
  explicit WorldHandle(std::unique_ptr<World> world);
  /// Returns the World. Throws InvalidArgument once closed.
  const std::shared_ptr<World>& get() const;
  /// Begins a call that may wait or launch; see Callers.
  Callers::Turn turn() const { return Callers::Turn(*callers_); }
  const std::shared_ptr<Callers>& callers() const { return callers_; }
  bool closed() const { return world_ == nullptr; }
  /// Drops this handle's share.
  void close() { world_.reset(); }

 private:
  std::shared_ptr<World> world_;
  std::shared_ptr<Callers> callers_ = std::make_shared<Callers>();
};

}  // namespace tokenyard::python
