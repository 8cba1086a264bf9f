/// Inspects a rank's staging, for tests on the host that lose parts of it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include "fabric/arena.hpp"
#include "fabric/world_access.hpp"
#include "tokenyard/world.hpp"

namespace tokenyard::test {

/// Returns the pieces of a rank's staging that hold `word` eight times, in order. Other words of
/// its arena may be stored concurrently.
inline std::vector<std::byte*> staged_pieces(World& world, uint32_t rank, uint16_t word) {
  const uint64_t four_words = word * 0x0001000100010001u;
  std::vector<std::byte*> found;
  auto* const words = reinterpret_cast<uint64_t*>(arena_of(world).base_of(rank));
  for (size_t at = 0; at + 1 < arena_of(world).capacity() / sizeof(*words); at += 2) {
    const auto holds = [&](size_t place) {
      return std::atomic_ref(words[place]).load(std::memory_order_relaxed) == four_words;
    };
    if (holds(at) && holds(at + 1)) found.push_back(reinterpret_cast<std::byte*>(words + at));
  }
  return found;
}

/// Waits until there are `count` such pieces, at most twenty seconds; returns those found.
inline std::vector<std::byte*> await_staged_pieces(World& world, uint32_t rank, uint16_t word,
                                                   size_t count) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  for (;;) {
    std::vector<std::byte*> found = staged_pieces(world, rank, word);
    if (found.size() >= count || std::chrono::steady_clock::now() >= until) return found;
    std::this_thread::yield();
  }
}

}  // namespace tokenyard::test
