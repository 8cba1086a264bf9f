/// Division by a number that the host knows before the launch. A GPU division takes some twenty
/// instructions, and at decode sizes instruction issue bounds a call's blocks.
#pragma once

#include <bit>
#include <cstdint>

#include "device/macros.hpp"

namespace tokenyard::low_latency {

/// Exact for dividends below 2^31. With s the bit width of divisor - 1, the factor is 2^(31 + s)
/// over the divisor, rounded up by less than 1; so the product exceeds the exact one by less than
/// dividend / 2^31 of the distance between two quotients.
struct Divisor {
  uint32_t divisor = 1, factor = uint32_t{1} << 31, shift = 31;

  static constexpr Divisor of(uint32_t divisor) {
    const auto shift = static_cast<uint32_t>(31 + std::bit_width(divisor - 1));
    const uint64_t power = uint64_t{1} << shift;
    return {divisor, static_cast<uint32_t>((power + divisor - 1) / divisor), shift};
  }
  TOKENYARD_HOST_DEVICE uint32_t quotient(uint32_t dividend) const {
    return static_cast<uint32_t>(uint64_t{dividend} * factor >> shift);
  }
  TOKENYARD_HOST_DEVICE uint32_t remainder(uint32_t dividend, uint32_t quotient) const {
    return dividend - quotient * divisor;
  }
};

}  // namespace tokenyard::low_latency
