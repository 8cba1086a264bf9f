/// Conversion of Python's times, in seconds.
#pragma once

#include <algorithm>
#include <chrono>
#include <optional>

namespace tokenyard::python {

/// Longer than any wait: three decades. Added to the current time it still fits in nanoseconds.
constexpr double kSecondsMax = 1e9;

/// Returns `seconds`, clamped to kSecondsMax; so infinity is allowed.
inline std::chrono::nanoseconds nanoseconds_of(double seconds) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
      std::chrono::duration<double>(std::clamp(seconds, -kSecondsMax, kSecondsMax)));
}

inline std::optional<std::chrono::nanoseconds> nanoseconds_of(std::optional<double> seconds) {
  return seconds ? std::optional(nanoseconds_of(*seconds)) : std::nullopt;
}

}  // namespace tokenyard::python
