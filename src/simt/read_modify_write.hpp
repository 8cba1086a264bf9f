/// The arithmetic of read-modify-writes, the same in every Memory.
#pragma once

#include <algorithm>
#include <type_traits>

#include "simt/memory.hpp"

namespace tokenyard::simt {

/// Returns the new value. `T` is the unsigned type of the access's size.
template <class T>
T modified(Modify what, T old, T operand) {
  static_assert(std::is_unsigned_v<T>);
  using Signed = std::make_signed_t<T>;
  switch (what) {
    case Modify::add:
      return old + operand;
    case Modify::max_unsigned:
      return std::max(old, operand);
    case Modify::max_signed:
      return std::max(static_cast<Signed>(old), static_cast<Signed>(operand));
    case Modify::min_unsigned:
      return std::min(old, operand);
    case Modify::min_signed:
      return std::min(static_cast<Signed>(old), static_cast<Signed>(operand));
    case Modify::bit_or:
      return old | operand;
    case Modify::bit_and:
      return old & operand;
    case Modify::exchange:
      return operand;
  }
  return operand;
}

}  // namespace tokenyard::simt
