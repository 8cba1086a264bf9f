/// Accesses with block scope. They may access shared or global memory, so they use the compiler's
/// atomics and volatile accesses: the compiler infers from a pointer's origin which memory it
/// points to and picks the instruction, which an asm statement cannot do. (A test with __isShared
/// is no alternative: with many of them nvcc 13.0 generates invalid code.)
///
/// A volatile access is relaxed at every scope. Ordering comes from fence.acq_rel.cta, which costs
/// the same as the ordered instructions of this scope.
#pragma once

#include <concepts>
#include <type_traits>

#include "device/cuda/ptx.hpp"

namespace tokenyard::cuda_body {

/// The integer type of T's size and sign that CUDA's atomics are overloaded for.
template <class T>
using Integer = std::conditional_t<
    sizeof(T) == 8, std::conditional_t<std::is_signed_v<T>, long long, unsigned long long>,
    std::conditional_t<sizeof(T) == 4, std::conditional_t<std::is_signed_v<T>, int, unsigned>,
                       std::conditional_t<sizeof(T) == 2, unsigned short, unsigned char>>>;
/// The unsigned type of T's size: addition and bit operations do not depend on the sign.
template <class T>
using Word = std::conditional_t<sizeof(T) == 8, unsigned long long,
                                std::conditional_t<sizeof(T) == 4, unsigned, Integer<T>>>;

template <Order order>
TOKENYARD_DEVICE void fence_before() {
  if constexpr (order == Order::release || order == Order::acq_rel)
    asm volatile("fence.acq_rel.cta;" ::: "memory");
}
template <Order order>
TOKENYARD_DEVICE void fence_after() {
  if constexpr (order == Order::acquire || order == Order::acq_rel)
    asm volatile("fence.acq_rel.cta;" ::: "memory");
}

template <Order order, class T>
TOKENYARD_DEVICE T load_in_block(const T* from) {
  static_assert(sizeof(T) <= 8, "block scope has no 16-byte accesses");
  const Word<T> value = *reinterpret_cast<const volatile Word<T>*>(from);
  fence_after<order>();
  return std::bit_cast<T>(value);
}

template <Order order, class T>
TOKENYARD_DEVICE void store_in_block(T* to, T value) {
  static_assert(sizeof(T) <= 8, "block scope has no 16-byte accesses");
  fence_before<order>();
  *reinterpret_cast<volatile Word<T>*>(to) = std::bit_cast<Word<T>>(value);
}

/// Applies `atomic`, one of CUDA's ..._block atomics on Number.
template <Order order, class Number, class T, class Atomic>
TOKENYARD_DEVICE T modify_in_block(T* at, T operand, Atomic atomic) {
  fence_before<order>();
  const Number old = atomic(reinterpret_cast<Number*>(at), std::bit_cast<Number>(operand));
  fence_after<order>();
  return std::bit_cast<T>(old);
}

template <Order order, class T>
TOKENYARD_DEVICE T compare_exchange_in_block(T* at, T expected, T desired) {
  fence_before<order>();
  const Word<T> old =
      atomicCAS_block(reinterpret_cast<Word<T>*>(at), std::bit_cast<Word<T>>(expected),
                      std::bit_cast<Word<T>>(desired));
  fence_after<order>();
  return std::bit_cast<T>(old);
}

}  // namespace tokenyard::cuda_body
