#pragma once

#include <algorithm>
#include <cstdint>

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

// prefetch.global.L2, which a compiler cannot leave out, asks for the words: its address depends on
// them, though it hardly ever differs.
template <class Params>
DEVICE void fetch_parameters(const Params& params, const void* anywhere) {
  constexpr uint32_t kLineBytes = 64, kLines = (sizeof(Params) + kLineBytes - 1) / kLineBytes;
  static_assert(kLines <= 32, "a lane each");
  const uint32_t line = std::min(threadIdx.x % 32, kLines - 1);
  const auto* const bytes = reinterpret_cast<const char*>(&params);
  const uint32_t word = *reinterpret_cast<const uint32_t*>(bytes + line * kLineBytes);
  const auto* const address = static_cast<const char*>(anywhere) + (word == 0x9e3779b9 ? 4 : 0);
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

}  // namespace tokenyard::grid
