#pragma once

#include "device/time.hpp"

namespace tokenyard {

// mov.u64 d, %globaltimer;   One clock per GPU, with a coarse tick (up to a microsecond).
TOKENYARD_DEVICE uint64_t now_ns() {
  uint64_t time;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
  return time;
}

// mov.u64 d, %clock64;
TOKENYARD_DEVICE uint64_t cycles() {
  uint64_t time;
  asm volatile("mov.u64 %0, %%clock64;" : "=l"(time));
  return time;
}

// nanosleep.u32 t;   Sleeps between 0 and twice `t` ns.
TOKENYARD_DEVICE void nap(uint32_t ns) {
  asm volatile("nanosleep.u32 %0;" ::"r"(ns));
}

}  // namespace tokenyard
