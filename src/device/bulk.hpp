/// Bulk copies (one-dimensional TMA): the hardware moves the bytes asynchronously.
///
///     load:   global or peer memory -> shared memory, signals a Completion
///     store:  shared memory -> global or peer memory, in groups that the issuing thread awaits
///
/// Copies run in the PTX async proxy. Only these order them with ordinary (generic proxy) accesses:
/// `fence_async()` between ordinary writes and a copy that reads them, in the writing thread before
/// it synchronises with the issuing thread or in the issuing thread after that; the end of a
/// Completion's phase, for loads; for stores, `wait_read` (then the source may be overwritten) and
/// `wait` (then the destination is written). After `wait<0>()`, a release by this thread, or by one
/// that synchronised with it, covers the stored bytes. Addresses and sizes are multiples of 16.
/// One thread issues a copy.
#pragma once

#include <cstdint>

#include "device/memory.hpp"

namespace tokenyard {

/// An L2 cache hint for the global side of a copy; 0 means no hint.
struct CachePolicy {
  uint64_t bits = 0;
};
TOKENYARD_DEVICE CachePolicy evict_first();
TOKENYARD_DEVICE CachePolicy evict_last();
TOKENYARD_DEVICE CachePolicy evict_normal();

/// An mbarrier in shared memory. A phase ends when `arrivals` threads have arrived and all bytes
/// expected in it have been loaded; phases alternate parity, starting at 0. The thread that calls
/// `init` then calls `fence_async()`, and a block barrier precedes any other thread's use.
class Completion {
 public:
  TOKENYARD_DEVICE void init(uint32_t arrivals);
  /// Arrives (release, block scope), and lets the phase expect `bytes` more of bulk loads.
  TOKENYARD_DEVICE void arrive_expect(uint32_t bytes);
  TOKENYARD_DEVICE void arrive();
  /// Returns whether the phase of this parity has ended. If so, acquires (block scope) its arrivals
  /// and the loaded bytes. May sleep for a bounded time; call it in a `wait_until`.
  TOKENYARD_DEVICE bool done(uint32_t parity);
  /// Does what `done` does without sleeping: for threads that poll other conditions too.
  TOKENYARD_DEVICE bool done_now(uint32_t parity);

 private:
  [[maybe_unused]] uint64_t state_;  // Accessed by address only.
};

TOKENYARD_DEVICE void fence_async();
/// Orders as `fence_async`, but only shared memory, so no pending access elsewhere delays it.
TOKENYARD_DEVICE void fence_async_shared();

namespace bulk {
TOKENYARD_DEVICE void load(void* to_shared, const void* from, uint32_t bytes,
                           Completion& completion, CachePolicy policy = {});
TOKENYARD_DEVICE void load(void* to_shared, Peer<const std::byte> from, uint32_t bytes,
                           Completion& completion, CachePolicy policy = {});
TOKENYARD_DEVICE void store(void* to, const void* from_shared, uint32_t bytes,
                            CachePolicy policy = {});
TOKENYARD_DEVICE void store(Peer<std::byte> to, const void* from_shared, uint32_t bytes,
                            CachePolicy policy = {});
/// Closes this thread's current group of stores.
TOKENYARD_DEVICE void commit();
/// Waits until at most `groups` of this thread's latest groups may still read their sources.
template <int groups>
TOKENYARD_DEVICE void wait_read();
/// Waits until at most `groups` of this thread's latest groups have not written all their bytes.
template <int groups>
TOKENYARD_DEVICE void wait();
}  // namespace bulk

}  // namespace tokenyard

#if TOKENYARD_DEVICE_BODY
#include "device/cuda/bulk.hpp"
#else
#include "device/host/bulk.hpp"
#endif
