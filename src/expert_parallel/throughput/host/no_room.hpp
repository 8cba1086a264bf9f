/// How a rank tells all others that its arena has no room for a dispatch: by a dispatch of one
/// token whose choice is no expert, which all ranks refuse before a row moves. The id says the
/// bytes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

namespace tokenyard::throughput {

struct NoRoom {
  uint32_t needed_kib = 0, free_kib = 0;

  static NoRoom of_bytes(uint64_t needed, uint64_t free) {
    return {kib((needed + 1023) / 1024), kib(free / 1024)};
  }
  int64_t id() const {
    return static_cast<int64_t>(kMark << 56 | uint64_t{needed_kib} << kBits | free_kib);
  }
  /// Returns what an id says, if it says that there is no room.
  static std::optional<NoRoom> of(int64_t id) {
    const auto bits = static_cast<uint64_t>(id);
    if (bits >> 56 != kMark) return std::nullopt;
    return NoRoom{static_cast<uint32_t>(bits >> kBits & kMost),
                  static_cast<uint32_t>(bits & kMost)};
  }

 private:
  static constexpr uint64_t kMark = 0xaa;  // Negative, and no value that memory is filled with.
  static constexpr uint32_t kBits = 28;
  static constexpr uint64_t kMost = (uint64_t{1} << kBits) - 1;
  static uint32_t kib(uint64_t value) { return static_cast<uint32_t>(std::min(value, kMost)); }
};

}  // namespace tokenyard::throughput
