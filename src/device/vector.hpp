/// Weak 16-byte accesses with cache hints, for bulk data. A warp whose lanes access consecutive
/// vectors moves 512 bytes per instruction.
#pragma once

#include "device/memory.hpp"

namespace tokenyard {

/// Hints to the caches on how the bytes are used. `read_only` is a promise, not only a hint.
enum class Cache : uint8_t {
  normal,     ///< no hint
  read_only,  ///< no thread writes them while the kernel runs (ld.global.nc)
  streaming,  ///< used once (evict first, no L1)
  level2,     ///< skip L1, because other blocks of this GPU write them (ld.cg / st.cg)
};

template <Cache cache = Cache::normal>
TOKENYARD_DEVICE Bytes16 load_vector(const Bytes16* from);
template <Cache cache = Cache::normal>
TOKENYARD_DEVICE Bytes16 load_vector(Peer<const Bytes16> from);
template <Cache cache = Cache::normal>
TOKENYARD_DEVICE void store_vector(Bytes16* to, Bytes16 value);
template <Cache cache = Cache::normal>
TOKENYARD_DEVICE void store_vector(Peer<Bytes16> to, Bytes16 value);
/// Loads one element (4 or 8 bytes) that no thread writes while the kernel runs.
template <Cache cache = Cache::read_only, class T>
TOKENYARD_DEVICE T load_cached(const T* from);

}  // namespace tokenyard

#if TOKENYARD_DEVICE_BODY
#include "device/cuda/vector.hpp"
#else
#include "device/host/vector.hpp"
#endif
