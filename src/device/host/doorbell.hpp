#pragma once

#include <unistd.h>

#include "device/doorbell.hpp"
#include "device/memory.hpp"

namespace tokenyard {

TOKENYARD_DEVICE void ring_doorbell(NetworkDoorbell& doorbell) {
  fence_sequential<Scope::sys>();
  // Relaxed: the fence orders it behind the post.
  if (load<Order::relaxed, Scope::sys>(&doorbell.asleep) == 0) return;
  const uint64_t one = 1;
  (void)!write(doorbell.event, &one, sizeof one);
}

}  // namespace tokenyard
