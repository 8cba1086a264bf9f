/// Wakes a thread of the host that works off a queue, if it sleeps. Only kernels on the host ring:
/// a GPU reaches no thread's sleep, so there the thread looks from time to time.
#pragma once

#include <cstdint>

#include "device/memory.hpp"

namespace tokenyard {

/// The thread sets `asleep`, then looks at its queues once more, then sleeps: both accesses are
/// sequentially consistent. A kernel posts, then looks at `asleep`, with such a fence in between.
/// So one of them sees the other.
struct NetworkDoorbell {
  uint32_t asleep = 0;
  int event = -1;  ///< an eventfd of this process
};

/// Call it after a post.
TOKENYARD_DEVICE void ring_doorbell(NetworkDoorbell& doorbell);

}  // namespace tokenyard

#if TOKENYARD_DEVICE_BODY
#include "device/cuda/doorbell.hpp"
#else
#include "device/host/doorbell.hpp"
#endif
