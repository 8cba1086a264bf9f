/// The PTX spelling of Order, Scope and types. The words' bodies pass these strings to their asm
/// statements through the "C" constraint, so that one statement covers a family of instructions.
#pragma once

#include <bit>
#include <cstdint>

#include "device/memory.hpp"

namespace tokenyard::ptx {

/// A weak access names no scope.
template <Order order>
inline constexpr char order_text[] = ".weak";
template <>
inline constexpr char order_text<Order::relaxed>[] = ".relaxed";
template <>
inline constexpr char order_text<Order::acquire>[] = ".acquire";
template <>
inline constexpr char order_text<Order::release>[] = ".release";
template <>
inline constexpr char order_text<Order::acq_rel>[] = ".acq_rel";

template <Scope scope, bool strong = true>
inline constexpr char scope_text[] = "";
template <>
inline constexpr char scope_text<Scope::block, true>[] = ".cta";
template <>
inline constexpr char scope_text<Scope::gpu, true>[] = ".gpu";
template <>
inline constexpr char scope_text<Scope::sys, true>[] = ".sys";

/// The register type for a value of `bytes` bytes. PTX has no 8-bit registers; values of 1 and 2
/// bytes travel in 32-bit ones.
template <int bytes>
struct RegisterOf;
template <>
struct RegisterOf<1> {
  using type = uint32_t;
  static constexpr const char unsigned_text[] = ".u8";
};
template <>
struct RegisterOf<2> {
  using type = uint32_t;
  static constexpr const char unsigned_text[] = ".u16";
};
template <>
struct RegisterOf<4> {
  using type = uint32_t;
  static constexpr const char unsigned_text[] = ".u32";
  static constexpr const char signed_text[] = ".s32";
  static constexpr const char bits_text[] = ".b32";
};
template <>
struct RegisterOf<8> {
  using type = uint64_t;
  static constexpr const char unsigned_text[] = ".u64";
  static constexpr const char signed_text[] = ".s64";
  static constexpr const char bits_text[] = ".b64";
};

template <class T>
using Register = typename RegisterOf<sizeof(T)>::type;

template <class T>
TOKENYARD_DEVICE Register<T> to_register(T value) {
  if constexpr (sizeof(T) == 1)
    return std::bit_cast<uint8_t>(value);
  else if constexpr (sizeof(T) == 2)
    return std::bit_cast<uint16_t>(value);
  else
    return std::bit_cast<Register<T>>(value);
}

template <class T>
TOKENYARD_DEVICE T from_register(Register<T> value) {
  if constexpr (sizeof(T) == 1)
    return std::bit_cast<T>(static_cast<uint8_t>(value));
  else if constexpr (sizeof(T) == 2)
    return std::bit_cast<T>(static_cast<uint16_t>(value));
  else
    return std::bit_cast<T>(value);
}

/// The two halves of a .b128 register, which inline asm splits and joins.
struct Halves {
  uint64_t low, high;
};

/// Converts a pointer into shared memory to the 32-bit address that .shared instructions take.
TOKENYARD_DEVICE uint32_t shared_address(const void* in_shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(in_shared));
}

}  // namespace tokenyard::ptx
