/// The same kernel in plain CUDA, without the words of device/, as one would write it by hand.
#pragma once

#include "device/sass/put_signal.hpp"

namespace plain {

using tokenyard::WaitReport;
using tokenyard::testing::kRowBytes;
using tokenyard::testing::PutSignalParams;

struct Shared {
  alignas(128) unsigned char row[kRowBytes];
  unsigned long long arrived;
  unsigned sum;
};

__device__ __forceinline__ unsigned shared_address(const void* p) {
  return static_cast<unsigned>(__cvta_generic_to_shared(p));
}

__device__ __forceinline__ unsigned long long timer() {
  unsigned long long t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
  return t;
}

__device__ __forceinline__ void report(const PutSignalParams& p, unsigned why, unsigned phase,
                                       unsigned rank, unsigned long long expected,
                                       unsigned long long seen, unsigned long long start) {
  unsigned first;
  asm volatile("atom.relaxed.gpu.global.cas.b32 %0, [%1], 0, %2;"
               : "=r"(first)
               : "l"(p.wait_context.failed), "r"(why)
               : "memory");
  if (first != 0) return;
  WaitReport& r = *p.wait_context.report;
  r.phase = phase;
  r.rank = rank;
  r.block = blockIdx.x;
  r.expected = expected;
  r.seen = seen;
  r.detail = 0;
  r.waited_ns = timer() - start;
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(&r.failure), "r"(why) : "memory");
}

__device__ __forceinline__ bool give_up(const PutSignalParams& p, unsigned& polls, unsigned phase,
                                        unsigned rank, unsigned long long expected,
                                        unsigned long long seen, unsigned long long start) {
  if (polls % 64 != 0) return false;
  unsigned word;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];"
               : "=r"(word)
               : "l"(p.wait_context.failed)
               : "memory");
  if (word != 0) return true;
  const unsigned long long waited = timer() - start;
  if (waited >= p.wait_context.timeout_ns) {
    report(p, 1, phase, rank, expected, seen, start);
    return true;
  }
  if (polls < 0xf0000000u && polls % 4096 != 0 && waited < polls * 4000ull) return false;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];"
               : "=r"(word)
               : "l"(p.wait_context.abort_flag)
               : "memory");
  unsigned why = word == 0 ? 0 : 2;
  if (word == 0xffffffffu) {
    asm volatile("fence.acquire.sys;" ::: "memory");
    why = 5;
  }
  if (word == 2) {
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];"
                 : "=r"(word)
                 : "l"(p.wait_context.abort_flag + 1 + rank)
                 : "memory");
    why = word == 0 ? 0 : 4;
  }
  const unsigned last = 0xf0000000u + (rank + 1) * 64;
  if (why == 4 && polls != last) {
    polls = last - 1;
    return false;
  }
  if (why == 0) {
    if (polls >= 0xf0000000u) polls = 0;
    return false;
  }
  report(p, why, phase, rank, expected, seen, start);
  return true;
}

__device__ __forceinline__ void put_rows(const PutSignalParams& p, Shared& s,
                                         unsigned long long start) {
  for (unsigned turn = 0;; ++turn) {
    unsigned row;
    asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], 1;"
                 : "=r"(row)
                 : "l"(p.tickets)
                 : "memory");
    if (row >= p.count) break;
    asm volatile("mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%0], %1;" ::"r"(
                     shared_address(&s.arrived)),
                 "r"(kRowBytes)
                 : "memory");
    unsigned long long policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    asm volatile(
        "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes.L2::cache_hint "
        "[%0], [%1], %2, [%3], %4;" ::"r"(shared_address(s.row)),
        "l"(p.rows + row * kRowBytes), "r"(kRowBytes), "r"(shared_address(&s.arrived)), "l"(policy)
        : "memory");
    for (unsigned polls = 1;; ++polls) {
      unsigned done;
      asm volatile(
          "{ .reg .pred q;\n"
          "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 q, [%1], %2;\n"
          "selp.u32 %0, 1, 0, q; }"
          : "=r"(done)
          : "r"(shared_address(&s.arrived)), "r"(turn & 1)
          : "memory");
      if (done) break;
      if (give_up(p, polls, 1, 0, row, 0, start)) return;
    }
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(
                     p.peer_rows + row * kRowBytes),
                 "r"(shared_address(s.row)), "r"(kRowBytes)
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
  }
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
  asm volatile("red.release.sys.global.add.u64 [%0], %1;" ::"l"(p.peer_signal), "l"(1ull)
               : "memory");
}

__device__ __forceinline__ void sum_rows(const PutSignalParams& p, Shared& s,
                                         unsigned long long start) {
  for (unsigned polls = 1;; ++polls) {
    unsigned long long seen;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(seen) : "l"(p.my_signal) : "memory");
    if (seen >= p.epoch) break;
    if (give_up(p, polls, 2, 1, p.epoch, seen, start)) break;
  }
  unsigned sum = 0;
  for (unsigned at = threadIdx.x; at < p.count * kRowBytes / 16; at += blockDim.x) {
    unsigned a, b, c, d;
    asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a), "=r"(b), "=r"(c), "=r"(d)
                 : "l"(p.my_rows + at * 16ull)
                 : "memory");
    sum += a ^ b ^ c ^ d;
  }
  sum = __reduce_add_sync(0xffffffffu, sum);
  if (threadIdx.x % 32 == 0) atomicAdd_block(&s.sum, sum);
}

}  // namespace plain

extern __shared__ __align__(128) unsigned char raw_shared[];

__global__ void __launch_bounds__(256, 1)
    put_signal_kernel(const __grid_constant__ plain::PutSignalParams p) {
  auto& s = *reinterpret_cast<plain::Shared*>(raw_shared);
  const unsigned long long start = plain::timer();
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(plain::shared_address(&s.arrived))
                 : "memory");
    s.sum = 0;
    asm volatile("fence.proxy.async;" ::: "memory");
  }
  __syncthreads();
  if (threadIdx.x == 0) plain::put_rows(p, s, start);
  plain::sum_rows(p, s, start);
  __syncthreads();
  if (threadIdx.x == 0)
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(p.sums + blockIdx.x), "r"(s.sum)
                 : "memory");
}
