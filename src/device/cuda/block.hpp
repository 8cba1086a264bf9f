#pragma once

#include "device/block.hpp"

namespace tokenyard {

namespace cuda_body {
/// The block's dynamic shared memory. 128-byte alignment suits bulk copies best; the hardware
/// aligns to 1024.
extern __shared__ __align__(128) std::byte shared_memory[];
}  // namespace cuda_body

namespace block {

TOKENYARD_DEVICE void sync() {
  __syncthreads();
}

TOKENYARD_DEVICE bool any(bool predicate) {
  return __syncthreads_or(predicate) != 0;
}

template <class Shared>
TOKENYARD_DEVICE Shared& shared() {
  static_assert(alignof(Shared) <= 128);
  return *reinterpret_cast<Shared*>(cuda_body::shared_memory);
}

template <class Shared>
TOKENYARD_DEVICE std::byte* shared_tail() {
  return cuda_body::shared_memory + (sizeof(Shared) + 127) / 128 * 128;
}

}  // namespace block

// barrier.cta.sync.aligned a, b;   All lanes of a warp must execute it together.
TOKENYARD_DEVICE void NamedBarrier::sync(uint32_t threads) const {
  asm volatile("barrier.cta.sync.aligned %0, %1;" ::"r"(id_), "r"(threads) : "memory");
}

// barrier.cta.arrive.aligned a, b;
TOKENYARD_DEVICE void NamedBarrier::arrive(uint32_t threads) const {
  asm volatile("barrier.cta.arrive.aligned %0, %1;" ::"r"(id_), "r"(threads) : "memory");
}

}  // namespace tokenyard
