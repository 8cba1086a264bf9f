/// Options of networks: those of the caller, and behind them the environment's.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tokenyard/error.hpp"

namespace tokenyard {

/// A value, and the name of the option or of the variable that it came from.
template <class T>
struct GivenOption {
  std::optional<T> value;
  std::string name;
};

template <class T>
GivenOption<T> given_option(const std::optional<T>& option, const std::optional<T>& variable,
                            const std::string& name) {
  if (option) return {option, "network." + name};
  std::string upper = "TOKENYARD_NETWORK_" + name;
  std::ranges::transform(upper, upper.begin(), [](char letter) {
    return letter >= 'a' && letter <= 'z' ? static_cast<char>(letter - 'a' + 'A') : letter;
  });
  return {variable, upper};
}

/// The same for an option that is not set if it is T{}.
template <class T>
GivenOption<T> given_option(const T& option, const std::optional<T>& variable,
                            const std::string& name) {
  return given_option(option == T{} ? std::nullopt : std::optional(option), variable, name);
}

/// Returns the value, or `otherwise`. Throws InvalidArgument if it is 0 or more than `most`.
inline uint32_t at_most(const GivenOption<uint32_t>& given, uint32_t otherwise, uint32_t most) {
  const uint32_t value = given.value.value_or(otherwise);
  if (given.value && (value == 0 || value > most))
    throw InvalidArgument(given.name, fmt::format("1 to {}", most), fmt::format("{}", value));
  return value;
}

/// Returns the value, or `otherwise`. Throws InvalidArgument if it is more than `most`.
inline uint32_t up_to(const GivenOption<uint32_t>& given, uint32_t otherwise, uint32_t most) {
  const uint32_t value = given.value.value_or(otherwise);
  if (given.value && value > most)
    throw InvalidArgument(given.name, fmt::format("0 to {}", most), fmt::format("{}", value));
  return value;
}

/// Throws InvalidArgument if the option is set: the transport cannot obey it, for this reason.
template <class T>
void refuse_given(const GivenOption<T>& given, const std::string& why) {
  if (!given.value) return;
  throw InvalidArgument(given.name, "nothing, as " + why, fmt::format("{}", *given.value));
}

/// Returns the timeout that is given, an option before the environment's seconds, or `otherwise`.
/// Throws InvalidArgument for a negative option.
std::chrono::nanoseconds given_timeout(std::chrono::nanoseconds option,
                                       const std::optional<double>& variable_s,
                                       std::chrono::nanoseconds otherwise);

/// Returns the entries between commas that count for a process of this local rank, or GPU: those
/// without a number, and "2=eth0", as "eth0", for 2. Throws InvalidArgument for an empty entry, and
/// if none counts.
std::vector<std::string> interfaces_for(const GivenOption<std::string>& given, uint32_t local_rank);

}  // namespace tokenyard
