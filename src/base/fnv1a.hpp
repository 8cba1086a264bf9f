/// FNV-1a of 64 bits (Fowler, Noll, Vo): the same number for the same bytes, everywhere and always,
/// so it may travel. Good for telling names and lists apart, and for finding what was damaged by
/// accident. Not for what somebody may forge: bytes of any given number are easily found; that is
/// net/key.hpp's. Nor for very much: it takes a multiplication a byte.
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
