/// Objects whose destructor may wait.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>

#include "forks.hpp"

namespace tokenyard::python {

/// Shares `object`, and releases the interpreter lock while it is destroyed: freeing memory that a
/// GPU uses waits for the GPU, which may wait for a rank, which may wait for the lock. In a fork of
/// this process the object is leaked.
template <class Object>
std::shared_ptr<Object> shared_and_destroyed_unlocked(std::unique_ptr<Object> object) {
  return std::shared_ptr<Object>(object.release(), [made = Forks()](Object* last) {
    if (made.since()) return;
    // Python destroys objects with the lock held, but one such object may destroy another, and
    // then the lock is free already.
    const nanobind::gil_scoped_acquire locked;
    const nanobind::gil_scoped_release unlocked;
    delete last;
  });
}

}  // namespace tokenyard::python
