/// Calls that allocate from the arena.
#pragma once

#include <nanobind/nanobind.h>

#include "tokenyard/error.hpp"

namespace tokenyard::python {

/// Runs `call` without the interpreter lock. If the arena is full, collects garbage and runs it
/// once more: cycles may keep rows alive, such as the frames of an exception or the rest of an
/// autograd graph. The other ranks meanwhile wait, as they would for a caller that frees memory and
/// calls again; a call that finds no memory has launched nothing that they see.
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
