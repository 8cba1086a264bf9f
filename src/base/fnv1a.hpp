/// 64-bit FNV-1a (Fowler, Noll, Vo): equal bytes give equal hashes on every machine and in every
/// build, so hashes may be sent. Use it to distinguish names and lists, and to detect accidental
/// damage. It does not resist forgery, since bytes with a given hash are easy to find (use
/// net/key.hpp), and it is slow for large data: one multiplication per byte.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace tokenyard {

constexpr uint64_t fnv1a(std::span<const std::byte> bytes) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const std::byte byte : bytes) hash = (hash ^ static_cast<uint64_t>(byte)) * 0x100000001b3;
  return hash;
}

}  // namespace tokenyard
