/// Numbers as bytes on a wire: lowest byte first, on every machine. The caller checks the number of
/// bytes and the values: nothing here is validated.
#pragma once

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

namespace tokenyard {

/// Unsigned integers and enumerations. An enumeration's value is not checked, so the caller must.
template <class T>
concept WireNumber = (std::unsigned_integral<T> && !std::same_as<T, bool>) || std::is_enum_v<T>;

template <WireNumber Number>
constexpr std::array<std::byte, sizeof(Number)> little_endian(Number value) {
  std::array<std::byte, sizeof(Number)> bytes{};
  for (size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<std::byte>(static_cast<uint64_t>(value) >> (8 * i));
  return bytes;
}

/// Writes `value` at the front of `to`, which must be long enough, and advances `to` past it.
template <WireNumber Number>
constexpr void put_number(std::span<std::byte>& to, Number value) {
  std::ranges::copy(little_endian(value), to.begin());
  to = to.subspan(sizeof(Number));
}

/// Reads a number from the front of `from`, which must be long enough, and advances `from` past it.
template <WireNumber Number>
constexpr Number take_number(std::span<const std::byte>& from) {
  uint64_t bits = 0;
  for (size_t i = sizeof(Number); i-- > 0;) bits = bits << 8 | std::to_integer<uint64_t>(from[i]);
  from = from.subspan(sizeof(Number));
  return static_cast<Number>(bits);
}

}  // namespace tokenyard
