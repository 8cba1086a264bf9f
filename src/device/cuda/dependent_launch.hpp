#pragma once

#include "device/dependent_launch.hpp"

namespace tokenyard::grid {

// griddepcontrol.wait;
DEVICE void wait_for_previous() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

// griddepcontrol.launch_dependents;   Says nothing about memory: the next kernel's
// wait_for_previous() waits for the end of this grid, not for this.
DEVICE void let_next_start() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

}  // namespace tokenyard::grid
