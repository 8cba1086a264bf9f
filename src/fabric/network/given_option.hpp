/// Options of networks: those of the caller, and behind them the environment's.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

#include "tokenyard/error.hpp"

namespace tokenyard {

/// A value, and the name of the option or of the variable that it came from.
template <class T>
struct GivenOption {
  std::optional<T> value;
  std::string name;
};

template <class T>
GivenOption<T> given_option(const T& option, const std::optional<T>& variable,
                            const std::string& name) {
  if (option != T{}) return {option, "network." + name};
  std::string upper = "TOKENYARD_NETWORK_" + name;
  std::ranges::transform(upper, upper.begin(), [](char letter) {
    return letter >= 'a' && letter <= 'z' ? static_cast<char>(letter - 'a' + 'A') : letter;
  });
  return {variable, upper};
}

/// Returns the value, or `otherwise`. Throws InvalidArgument if it is 0 or more than `most`.
inline uint32_t at_most(const GivenOption<uint32_t>& given, uint32_t otherwise, uint32_t most) {
  const uint32_t value = given.value.value_or(otherwise);
  if (given.value && (value == 0 || value > most))
    throw InvalidArgument(given.name, fmt::format("1 to {}", most), fmt::format("{}", value));
  return value;
}

}  // namespace tokenyard
