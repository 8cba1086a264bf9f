/// Times as Python gives them.
#pragma once

#include <algorithm>
#include <chrono>
#include <optional>

namespace tokenyard::python {

/// No wait is as long: three decades, and still within nanoseconds when it is added to now.
constexpr double kSecondsMax = 1e9;

/// Of a number; infinity, too, is only a long time.
inline std::chrono::nanoseconds nanoseconds_of(double seconds) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
      std::chrono::duration<double>(std::clamp(seconds, -kSecondsMax, kSecondsMax)));
}

inline std::optional<std::chrono::nanoseconds> nanoseconds_of(std::optional<double> seconds) {
  return seconds ? std::optional(nanoseconds_of(*seconds)) : std::nullopt;
}

}  // namespace tokenyard::python
