#pragma once

#include <unistd.h>

#include "device/doorbell.hpp"

namespace tokenyard {

TOKENYARD_DEVICE void ring_doorbell(NetworkDoorbell& doorbell) {
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
  // Relaxed: the fence orders it behind the post.
  if (__atomic_load_n(&doorbell.asleep, __ATOMIC_RELAXED) == 0) return;
  const uint64_t one = 1;
  (void)!write(doorbell.event, &one, sizeof one);
}

}  // namespace tokenyard
