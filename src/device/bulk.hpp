/// Bulk copies (TMA, one dimension): an agent beside the threads moves the bytes.
///
///     load:   global or peer memory -> shared memory, announced to a Completion
///     store:  shared memory -> global or peer memory, in groups that the issuing thread awaits
///
/// The agent is the PTX async proxy. It sees what ordinary accesses wrote, and they see what it
/// wrote, only across: `fence_async()` between ordinary writes and the copy that reads them (in the
/// writing thread before it synchronises, or in the copying thread after it did); a Completion's
/// phase for loads; `wait_read` (source may be overwritten) or `wait` (destination written) for
/// stores. After `wait<0>()` a release by the same thread, or by one that it synchronised with,
/// covers the stored bytes. Addresses and sizes are multiples of 16 bytes. One thread issues a
/// copy.
#pragma once

#include <cstdint>

#include "device/memory.hpp"

namespace tokenyard {

/// L2 cache hint for the global side of a copy. Zero means no hint.
struct CachePolicy {
  uint64_t bits = 0;
};
DEVICE CachePolicy evict_first();
DEVICE CachePolicy evict_last();
DEVICE CachePolicy evict_normal();

/// An mbarrier in shared memory. A phase ends when `arrivals` threads have arrived and all bytes
/// expected in it have come; phases alternate parity, beginning with 0. After `init` every thread
/// that did it calls `fence_async()`, and then the block meets before others use it.
class Completion {
 public:
  DEVICE void init(uint32_t arrivals);
  /// Arrives, and makes the phase wait for `bytes` of bulk loads as well.
  DEVICE void arrive_expect(uint32_t bytes);
  DEVICE void arrive();
  /// Whether the phase of this parity has ended; if so, what arrived in it is visible (acquire,
  /// block scope; arrivals are releases). Never blocks for long: put it in a `wait_until`.
  DEVICE bool done(uint32_t parity);
  /// Like `done`, but never sleeps: for threads that poll other conditions as well.
  DEVICE bool done_now(uint32_t parity);

 private:
  [[maybe_unused]] uint64_t state_;  // The words reach it by its address.
};

DEVICE void fence_async();
/// The same for shared memory only: pending accesses to other memory do not delay it.
DEVICE void fence_async_shared();

namespace bulk {
DEVICE void load(void* to_shared, const void* from, uint32_t bytes, Completion& completion,
                 CachePolicy policy = {});
DEVICE void load(void* to_shared, Peer<const std::byte> from, uint32_t bytes,
                 Completion& completion, CachePolicy policy = {});
DEVICE void store(void* to, const void* from_shared, uint32_t bytes, CachePolicy policy = {});
DEVICE void store(Peer<std::byte> to, const void* from_shared, uint32_t bytes,
                  CachePolicy policy = {});
/// Closes a group of this thread's stores.
DEVICE void commit();
/// Waits until at most `groups` of this thread's groups still read their sources.
template <int groups>
DEVICE void wait_read();
/// Waits until at most `groups` of this thread's groups are incomplete.
template <int groups>
DEVICE void wait();
}  // namespace bulk

}  // namespace tokenyard

#if TOKENYARD_DEVICE_BODY
#include "device/cuda/bulk.hpp"
#else
#include "device/host/bulk.hpp"
#endif
