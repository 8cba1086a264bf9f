/// Prefetches data that will be read soon. The hardware does so within a page of 4 KiB but not
/// beyond, so a stream from memory would otherwise stall at the beginning of each page.
#pragma once

#include <cstddef>

namespace tokenyard::collectives {

/// Distance at which copies prefetch: one smallest page.
inline constexpr size_t kPrefetchBytes = 4096;

/// Accepts any address; prefetching unmapped memory does nothing.
inline void prefetch(const void* from, size_t bytes = kPrefetchBytes) {
  constexpr size_t cache_line = 64;
  const auto* at = static_cast<const char*>(from);
  for (size_t offset = 0; offset < bytes; offset += cache_line) __builtin_prefetch(at + offset);
}

/// Prefetches data that is read a little later: not into the innermost cache, which is too small
/// for it.
inline void prefetch_outer(const void* from, size_t bytes) {
  constexpr size_t cache_line = 64;
  const auto* at = static_cast<const char*>(from);
  for (size_t offset = 0; offset < bytes; offset += cache_line)
    __builtin_prefetch(at + offset, 0, 2);
}

}  // namespace tokenyard::collectives
