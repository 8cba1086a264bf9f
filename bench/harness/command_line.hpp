/// Command lines of the programs that ./run starts.

#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <exception>
#include <functional>
#include <optional>
#include <string>

namespace tokenyard::bench {

/// Accepts an option whose whole text is a number from `low` to `high`, both included.
///
/// CLI::Range accepts the result of strtoll and strtod: a number that is too large saturates, and
/// "nan" is within every range.
template <class Number>
CLI::Validator in_range(Number low, Number high) {
  const auto refusal = [low, high](const std::string& text) -> std::string {
    Number value{};
    const char* const end = text.data() + text.size();
    const auto [stopped, error] = std::from_chars(text.data(), end, value);
    // Negated, so that NaN, for which every comparison is false, is rejected.
    if (error == std::errc() && stopped == end && value >= low && value <= high) return "";
    return fmt::format("{} is no number from {} to {}", text, low, high);
  };
  return CLI::Validator(refusal, fmt::format("in [{} - {}]", low, high));
}

/// Parses a command line. Returns the status to exit with at once: 0 after --help, or 2 for a
/// rejected argument, after an error message on standard error.
inline std::optional<int> exit_of_parse(CLI::App& app, int count, char** arguments) {
  try {
    app.parse(count, arguments);
  } catch (const CLI::ParseError& refusal) {
    return app.exit(refusal) == 0 ? 0 : 2;  // --help exits with 0.
  }
  return std::nullopt;
}

/// Returns `status`; or 1, after an error message, if standard output could not be written.
inline int exit_with(int status) {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return status;
  fmt::print(stderr, "cannot write to standard output: {}\n", std::strerror(errno));
  return 1;
}

/// Runs a bench. Returns the status to exit with: 1, after its message, for an error.
inline int exit_of_run(const std::function<void()>& run) {
  try {
    run();
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
  return exit_with(0);
}

}  // namespace tokenyard::bench
