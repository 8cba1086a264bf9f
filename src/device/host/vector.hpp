/// Hosts ignore cache hints. Accesses to this rank's own memory are plain, and in checked kernels
/// the compiler's instrumentation reports them; only accesses through a Peer call the machine.
#pragma once

#include "device/host/memory.hpp"
#include "device/vector.hpp"

namespace tokenyard {

namespace host_body {

/// Plain accesses fault on a GPU where a CPU allows them.
template <class T>
TOKENYARD_DEVICE void require_aligned(const T* at) {
  if (reinterpret_cast<uintptr_t>(at) % sizeof(T) != 0) [[unlikely]]
    machine().misaligned(at, sizeof(T), here());
}

}  // namespace host_body

template <Cache>
TOKENYARD_DEVICE Bytes16 load_vector(const Bytes16* from) {
  host_body::require_aligned(from);
  return *from;
}
template <Cache>
TOKENYARD_DEVICE Bytes16 load_vector(Peer<const Bytes16> from) {
  return load<Order::weak, Scope::sys>(from);
}
template <Cache>
TOKENYARD_DEVICE void store_vector(Bytes16* to, Bytes16 value) {
  host_body::require_aligned(to);
  *to = value;
}
template <Cache>
TOKENYARD_DEVICE void store_vector(Peer<Bytes16> to, Bytes16 value) {
  store<Order::weak, Scope::sys>(to, value);
}
template <Cache, class T>
TOKENYARD_DEVICE T load_cached(const T* from) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  host_body::require_aligned(from);
  return *from;
}

}  // namespace tokenyard
