/// The only source of randomness in a simulated run: the seed determines everything.
#pragma once

#include <bit>
#include <cstdint>

namespace tokenyard::simulation {

/// xoshiro256** (Blackman and Vigna). Its state is filled by splitmix64, so that neighbouring seeds
/// give unrelated runs.
class Random {
 public:
  explicit Random(uint64_t seed) {
    for (uint64_t& word : state_) word = split_mix(seed);
  }

  uint64_t next() {
    const uint64_t result = std::rotl(state_[1] * 5, 7) * 9;
    const uint64_t shifted = state_[1] << 17;
    state_[2] ^= state_[0];
    state_[3] ^= state_[1];
    state_[1] ^= state_[2];
    state_[0] ^= state_[3];
    state_[2] ^= shifted;
    state_[3] = std::rotl(state_[3], 45);
    return result;
  }
  /// Returns 0 .. bound-1; `bound` must not be 0. (A multiplication replaces the remainder: the
  /// bias is below 2^-32 for every bound used here.)
  uint32_t below(uint32_t bound) { return static_cast<uint32_t>(((next() >> 32) * bound) >> 32); }
  /// Returns `least` .. `most`, inclusive.
  uint32_t between(uint32_t least, uint32_t most) { return least + below(most - least + 1); }
  /// Returns true with probability per_1024 / 1024.
  bool chance(uint32_t per_1024) { return (next() & 1023) < per_1024; }
  /// Returns an independent generator, so that more draws in one part change nothing in another.
  Random split() { return Random(next()); }

  static uint64_t split_mix(uint64_t& state) {
    uint64_t z = (state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }

 private:
  uint64_t state_[4];
};

}  // namespace tokenyard::simulation
