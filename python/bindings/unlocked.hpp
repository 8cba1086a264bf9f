/// Objects whose end may wait.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>

#include "forks.hpp"

namespace tokenyard::python {

/// Shares `object`, and lets go of the interpreter lock while it is destroyed. Freeing what a GPU
/// uses waits for the GPU, which may wait for a rank, which may wait for the lock. In a fork of
/// this process it is not destroyed at all.
template <class Object>
std::shared_ptr<Object> shared_and_destroyed_unlocked(std::unique_ptr<Object> object) {
  return std::shared_ptr<Object>(object.release(), [made = Forks()](Object* last) {
    if (made.since()) return;
    // Python drops things with the lock held, but one such object may be the end of another.
    const nanobind::gil_scoped_acquire locked;
    const nanobind::gil_scoped_release unlocked;
    delete last;
  });
}

}  // namespace tokenyard::python
