/// Ordered accesses on a GPU.
///
/// Words that take a Peer and words of gpu or sys scope access the .global state space; a
/// shared-memory address faults there. Words of block scope are in block_scope.hpp.
#pragma once

#include "device/cuda/block_scope.hpp"
#include "device/cuda/ptx.hpp"
#include "device/memory.hpp"

namespace tokenyard {

namespace cuda_body {

template <Order order>
constexpr void check_load() {
  static_assert(order == Order::weak || order == Order::relaxed || order == Order::acquire,
                "a load is weak, relaxed or acquire");
}
template <Order order>
constexpr void check_store() {
  static_assert(order == Order::weak || order == Order::relaxed || order == Order::release,
                "a store is weak, relaxed or release");
}

// ld{.weak}{.global}.type d, [a];   ld.relaxed.scope{.global}.type; ld.acquire.scope{.global}.type
template <Order order, Scope scope, class T>
TOKENYARD_DEVICE T load_global(const T* from) {
  check_load<order>();
  constexpr bool strong = order != Order::weak;
  if constexpr (sizeof(T) == 16) {
    static_assert(strong, "16-byte accesses are relaxed at least: only those are atomic");
    ptx::Halves value;
    asm volatile(
        "{ .reg .b128 whole;\n"
        "ld%2%3.global.b128 whole, [%4];\n"
        "mov.b128 {%0, %1}, whole; }"
        : "=l"(value.low), "=l"(value.high)
        : "C"(ptx::order_text<order>), "C"(ptx::scope_text<scope>), "l"(from)
        : "memory");
    return std::bit_cast<T>(value);
  } else if constexpr (sizeof(T) == 8) {
    uint64_t value;
    asm volatile("ld%1%2.global.u64 %0, [%3];"
                 : "=l"(value)
                 : "C"(ptx::order_text<order>), "C"(ptx::scope_text<scope, strong>), "l"(from)
                 : "memory");
    return ptx::from_register<T>(value);
  } else {
    uint32_t value;
    asm volatile("ld%1%2.global%3 %0, [%4];"
                 : "=r"(value)
                 : "C"(ptx::order_text<order>), "C"(ptx::scope_text<scope, strong>),
                   "C"(ptx::RegisterOf<sizeof(T)>::unsigned_text), "l"(from)
                 : "memory");
    return ptx::from_register<T>(value);
  }
}

// st{.weak}{.global}.type [a], b;   st.relaxed.scope{.global}.type; st.release.scope{.global}.type
template <Order order, Scope scope, class T>
TOKENYARD_DEVICE void store_global(T* to, T value) {
  check_store<order>();
  constexpr bool strong = order != Order::weak;
  if constexpr (sizeof(T) == 16) {
    static_assert(strong, "16-byte accesses are relaxed at least: only those are atomic");
    const auto halves = std::bit_cast<ptx::Halves>(value);
    asm volatile(
        "{ .reg .b128 whole;\n"
        "mov.b128 whole, {%3, %4};\n"
        "st%0%1.global.b128 [%2], whole; }" ::"C"(ptx::order_text<order>),
        "C"(ptx::scope_text<scope>), "l"(to), "l"(halves.low), "l"(halves.high)
        : "memory");
  } else if constexpr (sizeof(T) == 8) {
    asm volatile("st%0%1.global.u64 [%2], %3;" ::"C"(ptx::order_text<order>),
                 "C"(ptx::scope_text<scope, strong>), "l"(to), "l"(ptx::to_register(value))
                 : "memory");
  } else {
    asm volatile("st%0%1.global%2 [%3], %4;" ::"C"(ptx::order_text<order>),
                 "C"(ptx::scope_text<scope, strong>),
                 "C"(ptx::RegisterOf<sizeof(T)>::unsigned_text), "l"(to),
                 "r"(ptx::to_register(value))
                 : "memory");
  }
}

}  // namespace cuda_body

template <Order order, Scope scope, class T>
TOKENYARD_DEVICE T load(const T* from) {
  cuda_body::check_load<order>();
  if constexpr (scope == Scope::block)
    return cuda_body::load_in_block<order>(from);
  else
    return cuda_body::load_global<order, scope>(from);
}

template <Order order, Scope scope, class T>
TOKENYARD_DEVICE std::remove_const_t<T> load(Peer<T> from) {
  return cuda_body::load_global<order, scope, std::remove_const_t<T>>(from.address());
}

template <Order order, Scope scope, class T>
TOKENYARD_DEVICE void store(T* to, std::type_identity_t<T> value) {
  cuda_body::check_store<order>();
  if constexpr (scope == Scope::block)
    cuda_body::store_in_block<order>(to, value);
  else
    cuda_body::store_global<order, scope>(to, value);
}

template <Order order, Scope scope, class T>
TOKENYARD_DEVICE void store(Peer<T> to, std::type_identity_t<T> value) {
  cuda_body::store_global<order, scope>(to.address(), value);
}

// fence.acq_rel.scope;
template <Scope scope>
TOKENYARD_DEVICE void fence() {
  asm volatile("fence.acq_rel%0;" ::"C"(ptx::scope_text<scope>) : "memory");
}

// fence.acquire.scope;   PTX 8.6
template <Scope scope>
TOKENYARD_DEVICE void fence_acquire() {
  asm volatile("fence.acquire%0;" ::"C"(ptx::scope_text<scope>) : "memory");
}

// fence.release.scope;   PTX 8.6
template <Scope scope>
TOKENYARD_DEVICE void fence_release() {
  asm volatile("fence.release%0;" ::"C"(ptx::scope_text<scope>) : "memory");
}

// fence.sc.scope;
template <Scope scope>
TOKENYARD_DEVICE void fence_sequential() {
  asm volatile("fence.sc%0;" ::"C"(ptx::scope_text<scope>) : "memory");
}

}  // namespace tokenyard

#include "device/cuda/modify.hpp"
