/// The parts of all fuzz targets. A target (NAME_fuzz.cpp) defines LLVMFuzzerTestOneInput, for
/// which libFuzzer invents inputs (./run fuzz); `replay.cpp` repeats those of corpora/NAME.
///
/// A target fails by a crash, a report of a sanitizer, an exception that is none of the library's
/// own errors, or a property that does not hold (`require`).
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string_view>
#include <vector>

#include "tokenyard/error.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace tokenyard::fuzz {

inline void require(bool holds, std::string_view what) {
  if (holds) return;
  fmt::print(stderr, "fuzz: {} does not hold\n", what);
  std::abort();
}

/// Takes an input apart, from its front. Once it is used up, all numbers are 0 and all bytes empty.
class Input {
 public:
  Input(const uint8_t* data, size_t size) : rest_(reinterpret_cast<const std::byte*>(data), size) {}

  bool empty() const { return rest_.empty(); }
  template <class Number>
  Number number() {
    uint64_t value = 0;
    for (const std::byte byte : bytes(sizeof(Number)))
      value = value << 8 | std::to_integer<uint64_t>(byte);
    return static_cast<Number>(value);
  }
  /// Returns a number from 0 to `largest`, which is below 256.
  uint32_t up_to(uint32_t largest) { return number<uint8_t>() % (largest + 1); }
  bool flag() { return (number<uint8_t>() & 1) != 0; }
  /// Returns at most `count` bytes.
  std::span<const std::byte> bytes(size_t count) {
    const auto taken = rest_.first(std::min(count, rest_.size()));
    rest_ = rest_.subspan(taken.size());
    return taken;
  }
  std::span<const std::byte> rest() { return bytes(rest_.size()); }

 private:
  std::span<const std::byte> rest_;
};

/// Requires that `encode` gives back the bytes that `decode` has accepted: a decoder that accepts
/// what no encoder writes lets two ranks read different things.
template <class Encoded>
void require_same_bytes(const Encoded& encoded, std::span<const std::byte> bytes,
                        std::string_view what) {
  require(std::ranges::equal(encoded, bytes), what);
}

}  // namespace tokenyard::fuzz
