/// Read-modify-writes on a GPU. Where memory is chosen as in memory.hpp beside this.
#pragma once

#include <concepts>

#include "device/cuda/memory.hpp"

namespace tokenyard {

namespace cuda_body {

inline constexpr char kGlobal[] = ".global";
inline constexpr char kShared[] = ".shared";

// What is done, and whether its type is told by sign, by width alone, or is always unsigned:
// addition is the same for both signs, and 64-bit addition has no signed name.
struct Add {
  static constexpr const char text[] = ".add";
  template <class T>
  static constexpr auto& type = ptx::RegisterOf<sizeof(T)>::unsigned_text;
};
template <bool is_signed, class T>
struct Signed {
  static constexpr auto& text = ptx::RegisterOf<sizeof(T)>::unsigned_text;
};
template <class T>
struct Signed<true, T> {
  static constexpr auto& text = ptx::RegisterOf<sizeof(T)>::signed_text;
};
struct Max {
  static constexpr const char text[] = ".max";
  template <class T>
  static constexpr auto& type = Signed<std::is_signed_v<T>, T>::text;
};
struct Min {
  static constexpr const char text[] = ".min";
  template <class T>
  static constexpr auto& type = Signed<std::is_signed_v<T>, T>::text;
};
struct Or {
  static constexpr const char text[] = ".or";
  template <class T>
  static constexpr auto& type = ptx::RegisterOf<sizeof(T)>::bits_text;
};
struct And {
  static constexpr const char text[] = ".and";
  template <class T>
  static constexpr auto& type = ptx::RegisterOf<sizeof(T)>::bits_text;
};
struct Exchange {
  static constexpr const char text[] = ".exch";
  template <class T>
  static constexpr auto& type = ptx::RegisterOf<sizeof(T)>::bits_text;
};

template <Order order, class T>
constexpr void check_modify() {
  static_assert(order != Order::weak, "a read-modify-write is relaxed at least");
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "4 or 8 bytes");
}

// atom{.sem}{.scope}{.space}.op.type d, [a], b;
template <class What, Order order, Scope scope, class T>
DEVICE T modify(T* at, T operand) {
  check_modify<order, T>();
  ptx::Register<T> old;
  const auto value = ptx::to_register(operand);
#define TOKENYARD_ATOM_(space, letter, address_letter, address)                         \
  asm volatile("atom%1%2%3%4%5 %0, [%6], %7;"                                           \
               : "=" letter(old)                                                        \
               : "C"(ptx::order_text<order>), "C"(ptx::scope_text<scope>), "C"(space),  \
                 "C"(What::text), "C"(What::template type<T>), address_letter(address), \
                 letter(value)                                                          \
               : "memory")
  if (is_in_shared<scope>(at)) {
    if constexpr (sizeof(T) == 8)
      TOKENYARD_ATOM_(kShared, "l", "r", ptx::shared_address(at));
    else
      TOKENYARD_ATOM_(kShared, "r", "r", ptx::shared_address(at));
  } else {
    if constexpr (sizeof(T) == 8)
      TOKENYARD_ATOM_(kGlobal, "l", "l", at);
    else
      TOKENYARD_ATOM_(kGlobal, "r", "l", at);
  }
#undef TOKENYARD_ATOM_
  return ptx::from_register<T>(old);
}

// red{.sem}{.scope}{.global}.add.type [a], b;
template <Order order, Scope scope, class T>
DEVICE void reduce_global(T* at, T operand) {
  check_modify<order, T>();
  static_assert(order == Order::relaxed || order == Order::release,
                "a reduction reads nothing back: relaxed or release");
  static_assert(std::integral<T>);
  if constexpr (sizeof(T) == 8)
    asm volatile("red%0%1.global.add.u64 [%2], %3;" ::"C"(ptx::order_text<order>),
                 "C"(ptx::scope_text<scope>), "l"(at), "l"(ptx::to_register(operand))
                 : "memory");
  else
    asm volatile("red%0%1.global.add.u32 [%2], %3;" ::"C"(ptx::order_text<order>),
                 "C"(ptx::scope_text<scope>), "l"(at), "r"(ptx::to_register(operand))
                 : "memory");
}

// red{.sem}.cta.shared.add.type [a], b;
template <Order order, class T>
DEVICE void reduce_shared(T* at, T operand) {
  if constexpr (sizeof(T) == 8)
    asm volatile("red%0.cta.shared.add.u64 [%1], %2;" ::"C"(ptx::order_text<order>),
                 "r"(ptx::shared_address(at)), "l"(ptx::to_register(operand))
                 : "memory");
  else
    asm volatile("red%0.cta.shared.add.u32 [%1], %2;" ::"C"(ptx::order_text<order>),
                 "r"(ptx::shared_address(at)), "r"(ptx::to_register(operand))
                 : "memory");
}

}  // namespace cuda_body

template <Order order, Scope scope, class T>
DEVICE T fetch_add(T* at, std::type_identity_t<T> value) {
  static_assert(std::integral<T>);
  return cuda_body::modify<cuda_body::Add, order, scope>(at, value);
}
template <Order order, Scope scope, class T>
DEVICE T fetch_add(Peer<T> at, std::type_identity_t<T> value) {
  static_assert(std::integral<T>);
  return cuda_body::modify<cuda_body::Add, order, scope>(at.address(), value);
}
template <Order order, Scope scope, class T>
DEVICE T fetch_max(T* at, std::type_identity_t<T> value) {
  static_assert(std::integral<T>);
  return cuda_body::modify<cuda_body::Max, order, scope>(at, value);
}
template <Order order, Scope scope, class T>
DEVICE T fetch_min(T* at, std::type_identity_t<T> value) {
  static_assert(std::integral<T>);
  return cuda_body::modify<cuda_body::Min, order, scope>(at, value);
}
template <Order order, Scope scope, class T>
DEVICE T fetch_or(T* at, std::type_identity_t<T> value) {
  return cuda_body::modify<cuda_body::Or, order, scope>(at, value);
}
template <Order order, Scope scope, class T>
DEVICE T fetch_and(T* at, std::type_identity_t<T> value) {
  return cuda_body::modify<cuda_body::And, order, scope>(at, value);
}
template <Order order, Scope scope, class T>
DEVICE T exchange(T* at, std::type_identity_t<T> value) {
  return cuda_body::modify<cuda_body::Exchange, order, scope>(at, value);
}

// atom{.sem}{.scope}{.space}.cas.type d, [a], b, c;
template <Order order, Scope scope, class T>
DEVICE T compare_exchange(T* at, std::type_identity_t<T> expected,
                          std::type_identity_t<T> desired) {
  cuda_body::check_modify<order, T>();
  ptx::Register<T> old;
  const auto before = ptx::to_register<T>(expected);
  const auto after = ptx::to_register<T>(desired);
#define TOKENYARD_CAS_(space, letter, address_letter, address)                         \
  asm volatile("atom%1%2%3.cas%4 %0, [%5], %6, %7;"                                    \
               : "=" letter(old)                                                       \
               : "C"(ptx::order_text<order>), "C"(ptx::scope_text<scope>), "C"(space), \
                 "C"(ptx::RegisterOf<sizeof(T)>::bits_text), address_letter(address),  \
                 letter(before), letter(after)                                         \
               : "memory")
  if (cuda_body::is_in_shared<scope>(at)) {
    if constexpr (sizeof(T) == 8)
      TOKENYARD_CAS_(cuda_body::kShared, "l", "r", ptx::shared_address(at));
    else
      TOKENYARD_CAS_(cuda_body::kShared, "r", "r", ptx::shared_address(at));
  } else {
    if constexpr (sizeof(T) == 8)
      TOKENYARD_CAS_(cuda_body::kGlobal, "l", "l", at);
    else
      TOKENYARD_CAS_(cuda_body::kGlobal, "r", "l", at);
  }
#undef TOKENYARD_CAS_
  return ptx::from_register<T>(old);
}

template <Order order, Scope scope, class T>
DEVICE void add(T* at, std::type_identity_t<T> value) {
  if (cuda_body::is_in_shared<scope>(at))
    cuda_body::reduce_shared<order>(at, value);
  else
    cuda_body::reduce_global<order, scope>(at, value);
}
template <Order order, Scope scope, class T>
DEVICE void add(Peer<T> at, std::type_identity_t<T> value) {
  cuda_body::reduce_global<order, scope>(at.address(), value);
}

}  // namespace tokenyard
