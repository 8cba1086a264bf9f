/// Calls that take room of the arena.
#pragma once

#include <nanobind/nanobind.h>

#include "tokenyard/error.hpp"

namespace tokenyard::python {

/// Runs `call` without the interpreter lock. If the arena has no room for it, once more after
/// Python has looked for what only cycles keep: rows, perhaps, that the frames of an exception
/// hold, or what is left of a graph of autograd. The other ranks wait meanwhile, as they do for
/// whoever frees some and calls again, and a call that finds no room has launched nothing that
/// others see.
template <class Call>
auto with_room(Call call) {
  try {
    const nanobind::gil_scoped_release unlocked;
    return call();
  } catch (const InvalidArgument& error) {
    if (error.argument != "arena_bytes") throw;
  }
  nanobind::module_::import_("gc").attr("collect")();
  const nanobind::gil_scoped_release unlocked;
  return call();
}

}  // namespace tokenyard::python
