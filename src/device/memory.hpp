/// Ordered memory accesses. Order and scope are template arguments, so each call states both:
///
///     store<Order::release, Scope::sys>(flags.of(rank), epoch);
///     const uint32_t seen = load<Order::acquire, Scope::sys>(flags.mine());
///
/// They mean what the PTX memory model says. T is trivially copyable, naturally aligned, and 1, 2,
/// 4, 8 or 16 bytes long. Every access is single-copy atomic (16 bytes by .b128, at least relaxed).
/// Two strong accesses synchronise only if the scope of each includes the other's thread. Ordinary
/// C++ loads and stores in a kernel are weak accesses, and may touch only this rank's own memory
/// and shared memory. `Order::weak` is for weak accesses through a `Peer`.
#pragma once

#include <cstdint>
#include <type_traits>

#include "device/macros.hpp"
#include "device/peer.hpp"

namespace tokenyard {

enum class Order : uint8_t { weak, relaxed, acquire, release, acq_rel };
enum class Scope : uint8_t { block, gpu, sys };
enum class Fence : uint8_t { acquire, release, acq_rel, sequential };

/// A value with the epoch of its call, written and read in one access. Stamped slots are never
/// cleared: the epoch tells a late write by an older call from one by this call.
struct alignas(8) Stamped {
  uint32_t epoch;
  uint32_t value;
};

/// Sixteen bytes, moved in one access.
struct alignas(16) Bytes16 {
  uint32_t word[4];
};

// `order`: weak, relaxed or acquire.
template <Order order, Scope scope, class T>
TOKENYARD_DEVICE T load(const T* from);
template <Order order, Scope scope, class T>
TOKENYARD_DEVICE std::remove_const_t<T> load(Peer<T> from);

// `order`: weak, relaxed or release.
template <Order order, Scope scope, class T>
TOKENYARD_DEVICE void store(T* to, std::type_identity_t<T> value);
template <Order order, Scope scope, class T>
TOKENYARD_DEVICE void store(Peer<T> to, std::type_identity_t<T> value);

// Read-modify-writes, which return the old value. T: 4 or 8 bytes; any `order` but weak.
template <Order order, Scope scope, class T>
TOKENYARD_DEVICE T fetch_add(T* at, std::type_identity_t<T> value);
template <Order order, Scope scope, class T>
TOKENYARD_DEVICE T fetch_add(Peer<T> at, std::type_identity_t<T> value);
template <Order order, Scope scope, class T>
TOKENYARD_DEVICE T fetch_max(T* at, std::type_identity_t<T> value);
template <Order order, Scope scope, class T>
TOKENYARD_DEVICE T fetch_min(T* at, std::type_identity_t<T> value);
template <Order order, Scope scope, class T>
TOKENYARD_DEVICE T fetch_or(T* at, std::type_identity_t<T> value);
template <Order order, Scope scope, class T>
TOKENYARD_DEVICE T fetch_and(T* at, std::type_identity_t<T> value);
template <Order order, Scope scope, class T>
TOKENYARD_DEVICE T exchange(T* at, std::type_identity_t<T> value);
template <Order order, Scope scope, class T>
TOKENYARD_DEVICE T compare_exchange(T* at, std::type_identity_t<T> expected,
                                    std::type_identity_t<T> desired);

/// Adds without returning the old value, so no reply crosses the link. `order`: relaxed or release.
template <Order order, Scope scope, class T>
TOKENYARD_DEVICE void add(T* at, std::type_identity_t<T> value);
template <Order order, Scope scope, class T>
TOKENYARD_DEVICE void add(Peer<T> at, std::type_identity_t<T> value);

/// fence.acq_rel.<scope>: makes a relaxed store after it a release and a relaxed load before it an
/// acquire. It does not order a store before it with a load after it; fence_sequential does.
template <Scope scope>
TOKENYARD_DEVICE void fence();
/// fence.acquire.<scope>: makes a relaxed load before it an acquire, so that a thread that polls
/// with relaxed loads can keep several in flight and acquire once.
template <Scope scope>
TOKENYARD_DEVICE void fence_acquire();
/// fence.release.<scope>: makes a relaxed store after it a release.
template <Scope scope>
TOKENYARD_DEVICE void fence_release();
/// fence.sc.<scope>: a fence() that is also ordered with every other fence.sc whose scope matches.
template <Scope scope>
TOKENYARD_DEVICE void fence_sequential();

}  // namespace tokenyard

#if TOKENYARD_DEVICE_BODY
#include "device/cuda/memory.hpp"
#else
#include "device/host/memory.hpp"
#endif
