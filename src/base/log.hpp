/// Lines on stderr about what changes while a job runs. `TOKENYARD_LOG` says from which level on:
/// "warning" (if it is not set), "info" or "debug".
///
/// A line never makes its thread wait. While stderr takes none (a terminal that is held, a pipe
/// that nobody reads), lines are left out, and the next one says how many: a thread that waited
/// there would send no heartbeats, and its rank would count as dead.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

namespace spdlog {
class logger;
}

namespace tokenyard {

enum class LogLevel : uint8_t { debug, info, warning };

/// Callable from any thread.
class Log {
 public:
  /// Throws InvalidArgument naming TOKENYARD_LOG if it is set to something else.
  explicit Log(uint32_t rank);

  /// Returns whether lines of this level are written, so that others need not be composed.
  bool takes(LogLevel level) const;
  /// Writes "TIME tokenyard LEVEL rank R epoch E: TEXT", in one piece.
  void write(LogLevel level, uint64_t epoch, std::string_view text) const;

 private:
  uint32_t rank_;
  std::shared_ptr<spdlog::logger> logger_;
};

}  // namespace tokenyard
