/// The command lines of programs that are run by ./run.

#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string>

namespace tokenyard::bench {

/// Accepts an option whose whole text is a number from `low` to `high`, both included.
///
/// CLI::Range accepts what strtoll and strtod make of a text: a number that is too large becomes
/// the largest there is, and "nan" lies within every range.
template <class Number>
CLI::Validator in_range(Number low, Number high) {
  const auto refusal = [low, high](const std::string& text) -> std::string {
    Number value{};
    const char* const end = text.data() + text.size();
    const auto [stopped, error] = std::from_chars(text.data(), end, value);
    // Written so that a NaN, which compares false, is refused.
    if (error == std::errc() && stopped == end && value >= low && value <= high) return "";
    return fmt::format("{} is no number from {} to {}", text, low, high);
  };
  return CLI::Validator(refusal, fmt::format("in [{} - {}]", low, high));
}

/// Parses a command line. Returns the status to exit with at once: 0 after --help, 2 for an
/// argument that is refused, which a sentence on standard error has named by then.
inline std::optional<int> exit_of_parse(CLI::App& app, int count, char** arguments) {
  try {
    app.parse(count, arguments);
  } catch (const CLI::ParseError& refusal) {
    return app.exit(refusal) == 0 ? 0 : 2;  // --help is one of them.
  }
  return std::nullopt;
}

/// Returns `status`, or 1 and a sentence on standard error if what was printed could not be
/// written.
inline int exit_with(int status) {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return status;
  fmt::print(stderr, "cannot write to standard output: {}\n", std::strerror(errno));
  return 1;
}

}  // namespace tokenyard::bench
