/// Damaged archives, which every kind must reject.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "tokenyard/error.hpp"

namespace tokenyard {

/// Returns the error of `read`, which must reject its bytes.
inline std::string refusal_of(auto read) {
  try {
    read();
  } catch (const InternalError& error) {
    return error.what();
  }
  return "it was taken";
}

/// Checks that `decode` rejects any damaged byte, any truncation, and one additional byte.
void expect_spoiled_refused(const std::vector<std::byte>& whole, auto decode) {
  decode(whole);
  for (size_t at = 0; at < whole.size(); ++at) {
    std::vector<std::byte> damaged = whole;
    damaged[at] ^= std::byte{0x40};
    EXPECT_THROW(decode(damaged), InternalError) << at;
    EXPECT_THROW(decode(std::span(whole).first(at)), InternalError) << at;
  }
  std::vector<std::byte> longer = whole;
  longer.push_back({});
  EXPECT_THROW(decode(longer), InternalError);
}

}  // namespace tokenyard
