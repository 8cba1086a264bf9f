/// Read-modify-writes on a GPU. The state space is chosen as in memory.hpp.
#pragma once

#include <concepts>

#include "device/cuda/memory.hpp"

namespace tokenyard {

namespace cuda_body {

// Operations: the PTX name, the PTX type of the operand, and CUDA's atomic function at block scope.
// Addition does not depend on the sign, and its 64-bit form has no signed name; bits have no sign.
template <bool is_signed, class T>
struct Signed {
  static constexpr auto& text = ptx::RegisterOf<sizeof(T)>::unsigned_text;
};
template <class T>
struct Signed<true, T> {
  static constexpr auto& text = ptx::RegisterOf<sizeof(T)>::signed_text;
};
struct Add {
  static constexpr const char text[] = ".add";
  template <class T>
  static constexpr auto& type = ptx::RegisterOf<sizeof(T)>::unsigned_text;
  template <class T>
  using Number = Word<T>;
  template <class N>
  static TOKENYARD_DEVICE N in_block(N* at, N value) {
    return atomicAdd_block(at, value);
  }
};
struct Max {
  static constexpr const char text[] = ".max";
  template <class T>
  static constexpr auto& type = Signed<std::is_signed_v<T>, T>::text;
  template <class T>
  using Number = Integer<T>;
  template <class N>
  static TOKENYARD_DEVICE N in_block(N* at, N value) {
    return atomicMax_block(at, value);
  }
};
struct Min {
  static constexpr const char text[] = ".min";
  template <class T>
  static constexpr auto& type = Signed<std::is_signed_v<T>, T>::text;
  template <class T>
  using Number = Integer<T>;
  template <class N>
  static TOKENYARD_DEVICE N in_block(N* at, N value) {
    return atomicMin_block(at, value);
  }
};
struct Or {
  static constexpr const char text[] = ".or";
  template <class T>
  static constexpr auto& type = ptx::RegisterOf<sizeof(T)>::bits_text;
  template <class T>
  using Number = Word<T>;
  template <class N>
  static TOKENYARD_DEVICE N in_block(N* at, N value) {
    return atomicOr_block(at, value);
  }
};
struct And {
  static constexpr const char text[] = ".and";
  template <class T>
  static constexpr auto& type = ptx::RegisterOf<sizeof(T)>::bits_text;
  template <class T>
  using Number = Word<T>;
  template <class N>
  static TOKENYARD_DEVICE N in_block(N* at, N value) {
    return atomicAnd_block(at, value);
  }
};
struct Exchange {
  static constexpr const char text[] = ".exch";
  template <class T>
  static constexpr auto& type = ptx::RegisterOf<sizeof(T)>::bits_text;
  template <class T>
  using Number = Word<T>;
  template <class N>
  static TOKENYARD_DEVICE N in_block(N* at, N value) {
    return atomicExch_block(at, value);
  }
};

template <Order order, class T>
constexpr void check_modify() {
  static_assert(order != Order::weak, "a read-modify-write is relaxed at least");
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "4 or 8 bytes");
}

// atom{.sem}{.scope}{.global}.op.type d, [a], b;
template <class What, Order order, Scope scope, class T>
TOKENYARD_DEVICE T modify(T* at, T operand) {
  check_modify<order, T>();
  if constexpr (scope == Scope::block) {
    using Number = typename What::template Number<T>;
    return modify_in_block<order, Number>(
        at, operand, [](Number* to, Number with) { return What::in_block(to, with); });
  } else {
    ptx::Register<T> old;
    const auto value = ptx::to_register(operand);
#define TOKENYARD_ATOM_(letter)                                                             \
  asm volatile("atom%1%2.global%3%4 %0, [%5], %6;"                                          \
               : "=" letter(old)                                                            \
               : "C"(ptx::order_text<order>), "C"(ptx::scope_text<scope>), "C"(What::text), \
                 "C"(What::template type<T>), "l"(at), letter(value)                        \
               : "memory")
    if constexpr (sizeof(T) == 8)
      TOKENYARD_ATOM_("l");
    else
      TOKENYARD_ATOM_("r");
#undef TOKENYARD_ATOM_
    return ptx::from_register<T>(old);
  }
}

// red{.sem}{.scope}{.global}.add.type [a], b;
template <Order order, Scope scope, class T>
TOKENYARD_DEVICE void reduce_global(T* at, T operand) {
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

}  // namespace cuda_body

template <Order order, Scope scope, class T>
TOKENYARD_DEVICE T fetch_add(T* at, std::type_identity_t<T> value) {
  static_assert(std::integral<T>);
  return cuda_body::modify<cuda_body::Add, order, scope>(at, value);
}
template <Order order, Scope scope, class T>
TOKENYARD_DEVICE T fetch_add(Peer<T> at, std::type_identity_t<T> value) {
  static_assert(std::integral<T>);
  return cuda_body::modify<cuda_body::Add, order, scope>(at.address(), value);
}
template <Order order, Scope scope, class T>
TOKENYARD_DEVICE T fetch_max(T* at, std::type_identity_t<T> value) {
  static_assert(std::integral<T>);
  return cuda_body::modify<cuda_body::Max, order, scope>(at, value);
}
template <Order order, Scope scope, class T>
TOKENYARD_DEVICE T fetch_min(T* at, std::type_identity_t<T> value) {
  static_assert(std::integral<T>);
  return cuda_body::modify<cuda_body::Min, order, scope>(at, value);
}
template <Order order, Scope scope, class T>
TOKENYARD_DEVICE T fetch_or(T* at, std::type_identity_t<T> value) {
  return cuda_body::modify<cuda_body::Or, order, scope>(at, value);
}
template <Order order, Scope scope, class T>
TOKENYARD_DEVICE T fetch_and(T* at, std::type_identity_t<T> value) {
  return cuda_body::modify<cuda_body::And, order, scope>(at, value);
}
template <Order order, Scope scope, class T>
TOKENYARD_DEVICE T exchange(T* at, std::type_identity_t<T> value) {
  return cuda_body::modify<cuda_body::Exchange, order, scope>(at, value);
}

// atom{.sem}{.scope}{.global}.cas.type d, [a], b, c;
template <Order order, Scope scope, class T>
TOKENYARD_DEVICE T compare_exchange(T* at, std::type_identity_t<T> expected,
                                    std::type_identity_t<T> desired) {
  cuda_body::check_modify<order, T>();
  if constexpr (scope == Scope::block) {
    return cuda_body::compare_exchange_in_block<order, T>(at, expected, desired);
  } else {
    ptx::Register<T> old;
    const auto before = ptx::to_register<T>(expected);
    const auto after = ptx::to_register<T>(desired);
#define TOKENYARD_CAS_(letter)                                                        \
  asm volatile("atom%1%2.global.cas%3 %0, [%4], %5, %6;"                              \
               : "=" letter(old)                                                      \
               : "C"(ptx::order_text<order>), "C"(ptx::scope_text<scope>),            \
                 "C"(ptx::RegisterOf<sizeof(T)>::bits_text), "l"(at), letter(before), \
                 letter(after)                                                        \
               : "memory")
    if constexpr (sizeof(T) == 8)
      TOKENYARD_CAS_("l");
    else
      TOKENYARD_CAS_("r");
#undef TOKENYARD_CAS_
    return ptx::from_register<T>(old);
  }
}

template <Order order, Scope scope, class T>
TOKENYARD_DEVICE void add(T* at, std::type_identity_t<T> value) {
  // At block scope the compiler drops the unused result by itself.
  if constexpr (scope == Scope::block)
    cuda_body::modify<cuda_body::Add, order, scope, T>(at, value);
  else
    cuda_body::reduce_global<order, scope, T>(at, value);
}
template <Order order, Scope scope, class T>
TOKENYARD_DEVICE void add(Peer<T> at, std::type_identity_t<T> value) {
  cuda_body::reduce_global<order, scope>(at.address(), value);
}

}  // namespace tokenyard
