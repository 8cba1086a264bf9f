/// What is made upon a World, as Python holds it.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <utility>

#include "unlocked.hpp"
#include "world.hpp"

namespace tokenyard::python {

/// The base of what needs a World: a base goes after the members of what derives from it, so the
/// World outlives them.
struct UponWorld {
  explicit UponWorld(const WorldHandle& handle) : world(handle.get()), callers(handle.callers()) {}
  Callers::Turn turn() const { return Callers::Turn(*callers); }
  std::shared_ptr<World> world;
  std::shared_ptr<Callers> callers;
};

/// A `Made`, which derives from UponWorld. In a turn of its own, and without the interpreter's
/// lock, since other ranks may be waited for.
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
