/// Vectors of 512 bits, which only some x86-64 machines have.
#pragma once

#ifdef __x86_64__

namespace tokenyard::collectives {

/// Marks a function that may be called only if has_wide_vectors().
#define TOKENYARD_WIDE_VECTORS [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl")]]

inline bool has_wide_vectors() {
  static const bool has =
      __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
      __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vl") != 0;
  return has;
}

}  // namespace tokenyard::collectives

#endif
