/// Calls that allocate from the arena.
#pragma once

#include <nanobind/nanobind.h>

#include <type_traits>

#include "tokenyard/error.hpp"

namespace tokenyard::python {

/// Runs `call` without the interpreter lock. If the arena is full, collects garbage and runs it
/// once more: cycles may keep rows alive, such as the frames of an exception or the rest of an
/// autograd graph. The other ranks meanwhile wait, as they would for a caller that frees memory and
/// calls again; a call that finds no memory has launched nothing that they see. `call` may take
/// whether it would be run once more. An error that names a rank is raised by all ranks.
template <class Call>
auto with_room(Call call) {
  const auto run = [&](bool comes_again) {
    const nanobind::gil_scoped_release unlocked;
    if constexpr (std::is_invocable_v<Call, bool>) {
      return call(comes_again);
    } else {
      return call();
    }
  };
  try {
    return run(true);
  } catch (const InvalidArgument& error) {
    if (error.argument != "arena_bytes" || error.rank) throw;
  }
  nanobind::module_::import_("gc").attr("collect")();
  return run(false);
}

}  // namespace tokenyard::python
