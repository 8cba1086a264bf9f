/// Arrays as bytes, for code that moves them without looking inside.
#pragma once

#include <cstddef>
#include <cstring>
#include <span>

#include "collectives/interfaces/array.hpp"
#include "tokenyard/collectives.hpp"

namespace tokenyard::collectives {

inline std::span<const std::byte> bytes_of_array(const ConstArray& array) {
  return {static_cast<const std::byte*>(array.data), array.bytes()};
}
inline std::span<std::byte> bytes_of_array(const Array& array) {
  return {static_cast<std::byte*>(array.data), array.bytes()};
}

inline void copy_array(const Array& into, const ConstArray& from) {
  if (into.data != from.data && from.bytes() > 0) {
    std::memmove(into.data, from.data, from.bytes());
  }
}

}  // namespace tokenyard::collectives
