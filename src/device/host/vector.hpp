/// Hosts ignore cache hints. Accesses to this rank's own memory are plain, and in checked kernels
/// the compiler's instrumentation reports them; only accesses through a Peer call the machine.
#pragma once

#include "device/host/memory.hpp"
#include "device/vector.hpp"

namespace tokenyard {

template <Cache>
TOKENYARD_DEVICE Bytes16 load_vector(const Bytes16* from) {
  return *from;
}
template <Cache>
TOKENYARD_DEVICE Bytes16 load_vector(Peer<const Bytes16> from) {
  return load<Order::weak, Scope::sys>(from);
}
template <Cache>
TOKENYARD_DEVICE void store_vector(Bytes16* to, Bytes16 value) {
  *to = value;
}
template <Cache>
TOKENYARD_DEVICE void store_vector(Peer<Bytes16> to, Bytes16 value) {
  store<Order::weak, Scope::sys>(to, value);
}
template <Cache, class T>
TOKENYARD_DEVICE T load_cached(const T* from) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  return *from;
}

}  // namespace tokenyard
