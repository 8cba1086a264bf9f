/// Weak 16-byte accesses: one instruction per lane, with no guarantee of atomicity.
#pragma once

#include "device/cuda/bulk.hpp"
#include "device/vector.hpp"

namespace tokenyard {

namespace cuda_body {

// ld.global.v4.u32          ld.global.cg.v4.u32 (skips L1)
// ld.global.nc.v4.u32       (non-coherent: may return stale data from L1)
// ld.global.L1::no_allocate.L2::cache_hint.v4.u32 {..}, [a], policy
template <Cache cache>
TOKENYARD_DEVICE Bytes16 load_vector_global(const Bytes16* from) {
  Bytes16 value;
#define TOKENYARD_OUTPUTS_ \
  "=r"(value.word[0]), "=r"(value.word[1]), "=r"(value.word[2]), "=r"(value.word[3])
  if constexpr (cache == Cache::normal)
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : TOKENYARD_OUTPUTS_
                 : "l"(from)
                 : "memory");
  else if constexpr (cache == Cache::level2)
    asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : TOKENYARD_OUTPUTS_
                 : "l"(from)
                 : "memory");
  else if constexpr (cache == Cache::read_only)
    // No memory clobber: no thread writes these bytes, so the load may move across ordinary
    // accesses. It is volatile, and so stays after wait_for_previous().
    asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];" : TOKENYARD_OUTPUTS_ : "l"(from));
  else
    asm volatile("ld.global.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
                 : TOKENYARD_OUTPUTS_
                 : "l"(from), "l"(evict_first().bits)
                 : "memory");
#undef TOKENYARD_OUTPUTS_
  return value;
}

// st.global.v4.u32          st.global.cg.v4.u32
// st.global.L1::no_allocate.L2::cache_hint.v4.u32 [a], {..}, policy
template <Cache cache>
TOKENYARD_DEVICE void store_vector_global(Bytes16* to, Bytes16 value) {
  static_assert(cache != Cache::read_only, "read-only memory cannot be stored to");
#define TOKENYARD_INPUTS_ \
  "l"(to), "r"(value.word[0]), "r"(value.word[1]), "r"(value.word[2]), "r"(value.word[3])
  if constexpr (cache == Cache::normal)
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::TOKENYARD_INPUTS_ : "memory");
  else if constexpr (cache == Cache::level2)
    asm volatile("st.global.cg.v4.u32 [%0], {%1, %2, %3, %4};" ::TOKENYARD_INPUTS_ : "memory");
  else
    asm volatile("st.global.L1::no_allocate.L2::cache_hint.v4.u32 [%0], {%1, %2, %3, %4}, %5;" ::
                     TOKENYARD_INPUTS_,
                 "l"(evict_first().bits)
                 : "memory");
#undef TOKENYARD_INPUTS_
}

}  // namespace cuda_body

template <Cache cache>
TOKENYARD_DEVICE Bytes16 load_vector(const Bytes16* from) {
  // The compiler generates plain accesses to this rank's own memory, which may be shared memory.
  if constexpr (cache == Cache::normal) {
    const uint4 value = *reinterpret_cast<const uint4*>(from);
    return {{value.x, value.y, value.z, value.w}};
  } else {
    return cuda_body::load_vector_global<cache>(from);
  }
}
template <Cache cache>
TOKENYARD_DEVICE Bytes16 load_vector(Peer<const Bytes16> from) {
  return cuda_body::load_vector_global<cache>(from.address());
}

template <Cache cache>
TOKENYARD_DEVICE void store_vector(Bytes16* to, Bytes16 value) {
  if constexpr (cache == Cache::normal)
    *reinterpret_cast<uint4*>(to) =
        make_uint4(value.word[0], value.word[1], value.word[2], value.word[3]);
  else
    cuda_body::store_vector_global<cache>(to, value);
}
template <Cache cache>
TOKENYARD_DEVICE void store_vector(Peer<Bytes16> to, Bytes16 value) {
  cuda_body::store_vector_global<cache>(to.address(), value);
}

namespace cuda_body {

// ld.global.nc.type d, [a];   ld.global.cg.type d, [a];
// ld.global.nc.L1::no_allocate.L2::cache_hint.type d, [a], policy;
template <Cache cache, class T>
TOKENYARD_DEVICE T load_cached_global(const T* from) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "4 or 8 bytes");
  using Width = ptx::RegisterOf<sizeof(T)>;
  ptx::Register<T> value;
#define TOKENYARD_LOAD_(letter)                                                \
  if constexpr (cache == Cache::read_only)                                     \
    asm volatile("ld.global.nc%1 %0, [%2];"                                    \
                 : "=" letter(value)                                           \
                 : "C"(Width::unsigned_text), "l"(from));                      \
  else if constexpr (cache == Cache::level2)                                   \
    asm volatile("ld.global.cg%1 %0, [%2];"                                    \
                 : "=" letter(value)                                           \
                 : "C"(Width::unsigned_text), "l"(from));                      \
  else                                                                         \
    asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint%1 %0, [%2], %3;" \
                 : "=" letter(value)                                           \
                 : "C"(Width::unsigned_text), "l"(from), "l"(evict_first().bits))
  if constexpr (sizeof(T) == 8) {
    TOKENYARD_LOAD_("l");
  } else {
    TOKENYARD_LOAD_("r");
  }
#undef TOKENYARD_LOAD_
  return ptx::from_register<T>(value);
}

}  // namespace cuda_body

template <Cache cache, class T>
TOKENYARD_DEVICE T load_cached(const T* from) {
  if constexpr (cache == Cache::normal)
    return *from;
  else
    return cuda_body::load_cached_global<cache>(from);
}

}  // namespace tokenyard
