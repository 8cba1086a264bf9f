/// Times as Python gives them.
#pragma once

#include <chrono>
#include <optional>

namespace tokenyard::python {

inline std::chrono::nanoseconds nanoseconds_of(double seconds) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
      std::chrono::duration<double>(seconds));
}

inline std::optional<std::chrono::nanoseconds> nanoseconds_of(std::optional<double> seconds) {
  return seconds ? std::optional(nanoseconds_of(*seconds)) : std::nullopt;
}

}  // namespace tokenyard::python
