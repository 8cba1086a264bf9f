/// Numbers as bytes on a wire: the lowest byte first, whatever the machine. How many bytes there
/// are is for the caller to look at: nothing here trusts or judges what came.
#pragma once

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

namespace tokenyard {

/// An enumeration is taken as it comes, so whoever takes one judges it.
template <class T>
concept WireNumber = (std::unsigned_integral<T> && !std::same_as<T, bool>) || std::is_enum_v<T>;

template <WireNumber Number>
constexpr std::array<std::byte, sizeof(Number)> little_endian(Number value) {
  std::array<std::byte, sizeof(Number)> bytes{};
  for (size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<std::byte>(static_cast<uint64_t>(value) >> (8 * i));
  return bytes;
}

/// At the front of `to`, which has room for it; what is behind it is left of `to`.
template <WireNumber Number>
constexpr void put_number(std::span<std::byte>& to, Number value) {
  std::ranges::copy(little_endian(value), to.begin());
  to = to.subspan(sizeof(Number));
}

/// From the front of `from`, which is as long at least; what is behind it is left of `from`.
template <WireNumber Number>
constexpr Number take_number(std::span<const std::byte>& from) {
  uint64_t bits = 0;
  for (size_t i = sizeof(Number); i-- > 0;) bits = bits << 8 | std::to_integer<uint64_t>(from[i]);
  from = from.subspan(sizeof(Number));
  return static_cast<Number>(bits);
}

}  // namespace tokenyard
