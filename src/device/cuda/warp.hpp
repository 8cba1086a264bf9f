#pragma once

#include <bit>
#include <type_traits>

#include "device/warp.hpp"

namespace tokenyard {

namespace cuda_body {
/// Applies `word` to a value's bits: CUDA's shuffles take only 32- and 64-bit integers.
template <class T, class Word>
TOKENYARD_DEVICE T on_bits(T value, Word word) {
  static_assert(std::is_trivially_copyable_v<T>);
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "4 or 8 bytes");
  using Bits = std::conditional_t<sizeof(T) == 8, unsigned long long, unsigned>;
  return std::bit_cast<T>(word(std::bit_cast<Bits>(value)));
}
}  // namespace cuda_body

namespace warp {

TOKENYARD_DEVICE void sync(uint32_t lanes) {
  __syncwarp(lanes);
}

template <class T>
TOKENYARD_DEVICE T shuffle(T value, uint32_t source_lane, uint32_t lanes) {
  return cuda_body::on_bits(value,
                            [&](auto bits) { return __shfl_sync(lanes, bits, source_lane); });
}
template <class T>
TOKENYARD_DEVICE T shuffle_xor(T value, uint32_t lane_mask, uint32_t lanes) {
  return cuda_body::on_bits(value,
                            [&](auto bits) { return __shfl_xor_sync(lanes, bits, lane_mask); });
}
template <class T>
TOKENYARD_DEVICE T shuffle_up(T value, uint32_t delta, uint32_t lanes) {
  return cuda_body::on_bits(value, [&](auto bits) { return __shfl_up_sync(lanes, bits, delta); });
}
template <class T>
TOKENYARD_DEVICE T shuffle_down(T value, uint32_t delta, uint32_t lanes) {
  return cuda_body::on_bits(value, [&](auto bits) { return __shfl_down_sync(lanes, bits, delta); });
}

TOKENYARD_DEVICE uint32_t ballot(bool predicate, uint32_t lanes) {
  return __ballot_sync(lanes, predicate);
}
TOKENYARD_DEVICE bool any(bool predicate, uint32_t lanes) {
  return __any_sync(lanes, predicate) != 0;
}
TOKENYARD_DEVICE bool all(bool predicate, uint32_t lanes) {
  return __all_sync(lanes, predicate) != 0;
}
TOKENYARD_DEVICE uint32_t match(uint32_t value, uint32_t lanes) {
  return __match_any_sync(lanes, value);
}

// redux.sync.op.type d, a, membermask;   One instruction, 32-bit integers only.
template <class T>
TOKENYARD_DEVICE T sum(T value, uint32_t lanes) {
  static_assert(std::is_same_v<T, int32_t> || std::is_same_v<T, uint32_t>);
  return __reduce_add_sync(lanes, value);
}
template <class T>
TOKENYARD_DEVICE T min(T value, uint32_t lanes) {
  static_assert(std::is_same_v<T, int32_t> || std::is_same_v<T, uint32_t>);
  return __reduce_min_sync(lanes, value);
}
template <class T>
TOKENYARD_DEVICE T max(T value, uint32_t lanes) {
  static_assert(std::is_same_v<T, int32_t> || std::is_same_v<T, uint32_t>);
  return __reduce_max_sync(lanes, value);
}
TOKENYARD_DEVICE uint32_t bit_or(uint32_t value, uint32_t lanes) {
  return __reduce_or_sync(lanes, value);
}

TOKENYARD_DEVICE uint32_t exclusive_sum(uint32_t value) {
  uint32_t inclusive = value;
#pragma unroll
  for (uint32_t delta = 1; delta < kWarpLanes; delta *= 2) {
    const uint32_t below = __shfl_up_sync(kAllLanes, inclusive, delta);
    if (threadIdx.x % kWarpLanes >= delta) inclusive += below;
  }
  return inclusive - value;
}

TOKENYARD_DEVICE bool elect() {
  return threadIdx.x % kWarpLanes == 0;
}

template <class Body>
TOKENYARD_DEVICE auto once(Body body) {
  using Result = decltype(body());
  __syncwarp();
  if constexpr (std::is_void_v<Result>) {
    if (elect()) body();
    __syncwarp();
  } else {
    Result result{};
    if (elect()) result = body();
    __syncwarp();
    return shuffle(result, 0, kAllLanes);
  }
}

}  // namespace warp

TOKENYARD_DEVICE uint32_t population(uint32_t bits) {
  return __popc(bits);
}
TOKENYARD_DEVICE uint32_t first_bit(uint32_t bits) {
  return bits == 0 ? 32 : __ffs(bits) - 1;
}
// mov.u32 d, %lanemask_lt;
TOKENYARD_DEVICE uint32_t lanes_below() {
  uint32_t lanes;
  asm("mov.u32 %0, %%lanemask_lt;" : "=r"(lanes));
  return lanes;
}

}  // namespace tokenyard
