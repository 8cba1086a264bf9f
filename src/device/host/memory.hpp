#pragma once

#include "device/host/here.hpp"
#include "device/host/machine.hpp"
#include "device/memory.hpp"

namespace tokenyard {

namespace host_body {

template <class T>
constexpr void check_atomic() {
  static_assert(std::is_trivially_copyable_v<T>);
  static_assert(sizeof(T) == 1 || sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 8 ||
                sizeof(T) == 16);
}

template <Order order, Scope scope, class T>
TOKENYARD_DEVICE T modify(Modify what, T* at, T operand) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  static_assert(order != Order::weak, "a read-modify-write is at least relaxed");
  T old;
  machine().modify(what, at, &operand, &old, sizeof(T), order, scope, here());
  return old;
}

template <class T>
inline constexpr Modify kMax = std::is_signed_v<T> ? Modify::max_signed : Modify::max_unsigned;
template <class T>
inline constexpr Modify kMin = std::is_signed_v<T> ? Modify::min_signed : Modify::min_unsigned;

}  // namespace host_body

template <Order order, Scope scope, class T>
TOKENYARD_DEVICE T load(const T* from) {
  static_assert(order == Order::weak || order == Order::relaxed || order == Order::acquire);
  host_body::check_atomic<T>();
  T value;
  host_body::machine().load(from, &value, sizeof(T), order, scope, host_body::here());
  return value;
}
template <Order order, Scope scope, class T>
TOKENYARD_DEVICE std::remove_const_t<T> load(Peer<T> from) {
  return load<order, scope>(static_cast<const std::remove_const_t<T>*>(from.address()));
}

template <Order order, Scope scope, class T>
TOKENYARD_DEVICE void store(T* to, std::type_identity_t<T> value) {
  static_assert(order == Order::weak || order == Order::relaxed || order == Order::release);
  host_body::check_atomic<T>();
  host_body::machine().store(to, &value, sizeof(T), order, scope, host_body::here());
}
template <Order order, Scope scope, class T>
TOKENYARD_DEVICE void store(Peer<T> to, std::type_identity_t<T> value) {
  store<order, scope>(to.address(), value);
}

template <Order order, Scope scope, class T>
TOKENYARD_DEVICE T fetch_add(T* at, std::type_identity_t<T> value) {
  return host_body::modify<order, scope, T>(host_body::Modify::add, at, value);
}
template <Order order, Scope scope, class T>
TOKENYARD_DEVICE T fetch_add(Peer<T> at, std::type_identity_t<T> value) {
  return fetch_add<order, scope>(at.address(), value);
}
template <Order order, Scope scope, class T>
TOKENYARD_DEVICE T fetch_max(T* at, std::type_identity_t<T> value) {
  return host_body::modify<order, scope, T>(host_body::kMax<T>, at, value);
}
template <Order order, Scope scope, class T>
TOKENYARD_DEVICE T fetch_min(T* at, std::type_identity_t<T> value) {
  return host_body::modify<order, scope, T>(host_body::kMin<T>, at, value);
}
template <Order order, Scope scope, class T>
TOKENYARD_DEVICE T fetch_or(T* at, std::type_identity_t<T> value) {
  return host_body::modify<order, scope, T>(host_body::Modify::bit_or, at, value);
}
template <Order order, Scope scope, class T>
TOKENYARD_DEVICE T fetch_and(T* at, std::type_identity_t<T> value) {
  return host_body::modify<order, scope, T>(host_body::Modify::bit_and, at, value);
}
template <Order order, Scope scope, class T>
TOKENYARD_DEVICE T exchange(T* at, std::type_identity_t<T> value) {
  return host_body::modify<order, scope, T>(host_body::Modify::exchange, at, value);
}
template <Order order, Scope scope, class T>
TOKENYARD_DEVICE T compare_exchange(T* at, std::type_identity_t<T> expected,
                                    std::type_identity_t<T> desired) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  static_assert(order != Order::weak, "a read-modify-write is at least relaxed");
  T old;
  host_body::machine().compare_exchange(at, &expected, &desired, &old, sizeof(T), order, scope,
                                        host_body::here());
  return old;
}

template <Order order, Scope scope, class T>
TOKENYARD_DEVICE void add(T* at, std::type_identity_t<T> value) {
  static_assert(order == Order::relaxed || order == Order::release);
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  host_body::machine().modify(host_body::Modify::add, at, &value, nullptr, sizeof(T), order, scope,
                              host_body::here());
}
template <Order order, Scope scope, class T>
TOKENYARD_DEVICE void add(Peer<T> at, std::type_identity_t<T> value) {
  add<order, scope>(at.address(), value);
}

template <Scope scope>
TOKENYARD_DEVICE void fence() {
  host_body::machine().fence(Fence::acq_rel, scope, host_body::here());
}
template <Scope scope>
TOKENYARD_DEVICE void fence_acquire() {
  host_body::machine().fence(Fence::acquire, scope, host_body::here());
}
template <Scope scope>
TOKENYARD_DEVICE void fence_release() {
  host_body::machine().fence(Fence::release, scope, host_body::here());
}
template <Scope scope>
TOKENYARD_DEVICE void fence_sequential() {
  host_body::machine().fence(Fence::sequential, scope, host_body::here());
}

}  // namespace tokenyard
