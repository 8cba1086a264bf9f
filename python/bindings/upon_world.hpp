/// Python's handles of objects made on a World.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <utility>

#include "unlocked.hpp"
#include "world.hpp"

namespace tokenyard::python {

/// The base of objects that need a World. A base is destroyed after the members of a derived class,
/// so the World outlives them.
struct UponWorld {
  explicit UponWorld(const WorldHandle& handle) : world(handle.get()), callers(handle.callers()) {}
  Callers::Turn turn() const { return Callers::Turn(*callers); }
  std::shared_ptr<World> world;
  std::shared_ptr<Callers> callers;
};

/// Makes a `Made`, which derives from UponWorld, as one call of the World. Releases the interpreter
/// lock meanwhile, since the constructor may wait for other ranks.
template <class Made, class... Arguments>
std::shared_ptr<Made> make_upon(const WorldHandle& handle, const Arguments&... arguments) {
  UponWorld upon(handle);
  const Callers::Turn turn = upon.turn();
  std::unique_ptr<Made> made;
  {
    nanobind::gil_scoped_release unlocked;
    made = std::make_unique<Made>(std::move(upon), arguments...);
  }
  return shared_and_destroyed_unlocked(std::move(made));
}

}  // namespace tokenyard::python
