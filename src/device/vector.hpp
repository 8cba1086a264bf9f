/// Weak 16-byte accesses with cache hints, for the data itself. A warp whose lanes touch
/// neighbouring pieces moves 512 bytes with one instruction.
#pragma once

#include "device/memory.hpp"

namespace tokenyard {

/// Expected use of the bytes, as a hint to the caches.
enum class Cache : uint8_t {
  normal,     ///< no hint
  read_only,  ///< nobody writes them while the kernel runs (ld.global.nc)
  streaming,  ///< used once (evict first, no L1)
  level2,     ///< skip L1: others on this GPU write them (ld.cg / st.cg)
};

template <Cache cache = Cache::normal>
DEVICE Bytes16 load_vector(const Bytes16* from);
template <Cache cache = Cache::normal>
DEVICE Bytes16 load_vector(Peer<const Bytes16> from);
template <Cache cache = Cache::normal>
DEVICE void store_vector(Bytes16* to, Bytes16 value);
template <Cache cache = Cache::normal>
DEVICE void store_vector(Peer<Bytes16> to, Bytes16 value);
/// Loads one element (4 or 8 bytes) that no thread writes while the kernel runs.
template <Cache cache = Cache::read_only, class T>
DEVICE T load_cached(const T* from);

}  // namespace tokenyard

#if TOKENYARD_DEVICE_BODY
#include "device/cuda/vector.hpp"
#else
#include "device/host/vector.hpp"
#endif
