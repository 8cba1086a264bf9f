/// What will be read soon is asked for now. The machine does that by itself within a page of 4 KiB,
/// but not beyond; a stream from memory waits at each page's beginning otherwise.
#pragma once

#include <cstddef>

namespace tokenyard::collectives {

/// How far ahead copies ask: a page of the smallest kind.
inline constexpr size_t kPrefetchBytes = 4096;

/// Any address will do: what is not there is not fetched.
inline void prefetch(const void* from, size_t bytes = kPrefetchBytes) {
  constexpr size_t cache_line = 64;
  const auto* at = static_cast<const char*>(from);
  for (size_t offset = 0; offset < bytes; offset += cache_line) __builtin_prefetch(at + offset);
}

/// The same for what is read a little later: past the innermost cache, which has no room for it.
inline void prefetch_outer(const void* from, size_t bytes) {
  constexpr size_t cache_line = 64;
  const auto* at = static_cast<const char*>(from);
  for (size_t offset = 0; offset < bytes; offset += cache_line)
    __builtin_prefetch(at + offset, 0, 2);
}

}  // namespace tokenyard::collectives
