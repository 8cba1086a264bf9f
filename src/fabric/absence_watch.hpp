/// Detects periods in which this process did not run: it was stopped (SIGSTOP) or got no CPU. A
/// rank that resumes finds its waits timed out, and must not blame the ranks it waited for.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>

#include "device/accelerator.hpp"

namespace tokenyard {

/// A period in which the process did not run, accurate to a tick.
struct Absence {
  TimePoint from, until;
  std::chrono::system_clock::time_point since;  ///< `from` in wall-clock time, for errors

  std::chrono::nanoseconds length() const { return until - from; }
};

/// Reads the clock every tick, on its own thread. The ranks of a process share one.
class AbsenceWatch {
 public:
  static constexpr std::chrono::milliseconds kTick{50};
  /// How late a tick must be to count as an absence.
  static constexpr std::chrono::milliseconds kLate{250};

  AbsenceWatch();
  ~AbsenceWatch();
  AbsenceWatch(const AbsenceWatch&) = delete;
  AbsenceWatch& operator=(const AbsenceWatch&) = delete;

  /// Returns the longest absence that overlaps [from, until].
  std::optional<Absence> longest(TimePoint from, TimePoint until) const;

 private:
  static constexpr size_t kKept = 64;

  void watch(std::stop_token stop);
  /// Returns the time since the last tick if it counts as an absence.
  std::optional<Absence> since_last_tick() const;

  mutable std::mutex mutex_;
  std::condition_variable_any stopped_;
  TimePoint last_tick_ = Clock::now();
  std::deque<Absence> absences_;  ///< the newest kKept, oldest first
  std::jthread thread_;
};

}  // namespace tokenyard
