/// Returns the first difference between seen and expected values; an empty string if there is none.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>
#include <string_view>
#include <vector>

namespace tokenyard::test {

template <class T>
std::string difference(std::string_view what, const std::vector<T>& seen,
                       const std::vector<T>& expected) {
  if (seen.size() != expected.size())
    return fmt::format("{}: {} values instead of {}; ", what, seen.size(), expected.size());
  for (size_t i = 0; i < seen.size(); ++i)
    if (seen[i] != expected[i])
      return fmt::format("{}[{}] is {} instead of {}; ", what, i, seen[i], expected[i]);
  return "";
}

}  // namespace tokenyard::test
