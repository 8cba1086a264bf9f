/// Bulk copies on a GPU: cp.async.bulk, and the mbarrier that its loads complete on.
#pragma once

#include "device/bulk.hpp"
#include "device/cuda/ptx.hpp"

namespace tokenyard {

// createpolicy.fractional.L2::evict_first.b64 policy, 1.0;   Not volatile: its result is always the
// same, so the compiler may compute it once per kernel. The assumption removes the test whether a
// policy was given.
TOKENYARD_DEVICE CachePolicy evict_first() {
  uint64_t bits;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(bits));
  __builtin_assume(bits != 0);
  return {bits};
}
TOKENYARD_DEVICE CachePolicy evict_last() {
  uint64_t bits;
  asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(bits));
  __builtin_assume(bits != 0);
  return {bits};
}
TOKENYARD_DEVICE CachePolicy evict_normal() {
  uint64_t bits;
  asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(bits));
  __builtin_assume(bits != 0);
  return {bits};
}

// mbarrier.init.shared::cta.b64 [addr], count;
TOKENYARD_DEVICE void Completion::init(uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(ptx::shared_address(&state_)),
               "r"(arrivals)
               : "memory");
}

// mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [addr], tx_count;
TOKENYARD_DEVICE void Completion::arrive_expect(uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%0], %1;" ::"r"(
                   ptx::shared_address(&state_)),
               "r"(bytes)
               : "memory");
}

// mbarrier.arrive.release.cta.shared::cta.b64 _, [addr];
TOKENYARD_DEVICE void Completion::arrive() {
  asm volatile(
      "mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"(ptx::shared_address(&state_))
      : "memory");
}

// mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 waitComplete, [addr], parity;
// The thread may sleep until the phase ends, for at most a time that the hardware limits.
TOKENYARD_DEVICE bool Completion::done(uint32_t parity) {
  uint32_t ended;
  asm volatile(
      "{ .reg .pred ended;\n"
      "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 ended, [%1], %2;\n"
      "selp.u32 %0, 1, 0, ended; }"
      : "=r"(ended)
      : "r"(ptx::shared_address(&state_)), "r"(parity)
      : "memory");
  return ended != 0;
}

// mbarrier.test_wait.parity.acquire.cta.shared::cta.b64 waitComplete, [addr], parity;
TOKENYARD_DEVICE bool Completion::done_now(uint32_t parity) {
  uint32_t ended;
  asm volatile(
      "{ .reg .pred ended;\n"
      "mbarrier.test_wait.parity.acquire.cta.shared::cta.b64 ended, [%1], %2;\n"
      "selp.u32 %0, 1, 0, ended; }"
      : "=r"(ended)
      : "r"(ptx::shared_address(&state_)), "r"(parity)
      : "memory");
  return ended != 0;
}

// fence.proxy.async;   All state spaces: staging buffers are in shared memory, sources in global.
TOKENYARD_DEVICE void fence_async() {
  asm volatile("fence.proxy.async;" ::: "memory");
}

// fence.proxy.async.shared::cta;
TOKENYARD_DEVICE void fence_async_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

namespace bulk {

// cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes{.L2::cache_hint}
//     [dstMem], [srcMem], size, [mbar]{, policy};
TOKENYARD_DEVICE void load(void* to_shared, const void* from, uint32_t bytes,
                           Completion& completion, CachePolicy policy) {
  if (policy.bits == 0)
    asm volatile(
        "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
            ptx::shared_address(to_shared)),
        "l"(from), "r"(bytes), "r"(ptx::shared_address(&completion))
        : "memory");
  else
    asm volatile(
        "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes.L2::cache_hint "
        "[%0], [%1], %2, [%3], %4;" ::"r"(ptx::shared_address(to_shared)),
        "l"(from), "r"(bytes), "r"(ptx::shared_address(&completion)), "l"(policy.bits)
        : "memory");
}
TOKENYARD_DEVICE void load(void* to_shared, Peer<const std::byte> from, uint32_t bytes,
                           Completion& completion, CachePolicy policy) {
  load(to_shared, static_cast<const void*>(from.address()), bytes, completion, policy);
}

// cp.async.bulk.global.shared::cta.bulk_group{.L2::cache_hint} [dstMem], [srcMem], size{, policy};
TOKENYARD_DEVICE void store(void* to, const void* from_shared, uint32_t bytes, CachePolicy policy) {
  if (policy.bits == 0)
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
                 "r"(ptx::shared_address(from_shared)), "r"(bytes)
                 : "memory");
  else
    asm volatile(
        "cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint [%0], [%1], %2, %3;" ::"l"(to),
        "r"(ptx::shared_address(from_shared)), "r"(bytes), "l"(policy.bits)
        : "memory");
}
TOKENYARD_DEVICE void store(Peer<std::byte> to, const void* from_shared, uint32_t bytes,
                            CachePolicy policy) {
  store(static_cast<void*>(to.address()), from_shared, bytes, policy);
}

// cp.async.bulk.commit_group;
TOKENYARD_DEVICE void commit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// cp.async.bulk.wait_group.read N;
template <int groups>
TOKENYARD_DEVICE void wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(groups) : "memory");
}

// cp.async.bulk.wait_group N;
template <int groups>
TOKENYARD_DEVICE void wait() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(groups) : "memory");
}

}  // namespace bulk

}  // namespace tokenyard
