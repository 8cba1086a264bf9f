/// Notices when this process did not run: it was stopped (SIGSTOP), or got no CPU. A rank that
/// wakes finds that its waits have timed out, and must not accuse the ranks it waited for.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>

#include "device/accelerator.hpp"

namespace tokenyard {

/// A time in which the process did not run, within a tick.
struct Absence {
  TimePoint from, until;
  std::chrono::system_clock::time_point since;  ///< `from`, on the clock for people

  std::chrono::nanoseconds length() const { return until - from; }
};

/// A thread that looks at the clock every tick. The ranks of a process share one.
class AbsenceWatch {
 public:
  static constexpr std::chrono::milliseconds kTick{50};
  /// A tick that comes later than this is an absence.
  static constexpr std::chrono::milliseconds kLate{250};

  AbsenceWatch();
  ~AbsenceWatch();
  AbsenceWatch(const AbsenceWatch&) = delete;
  AbsenceWatch& operator=(const AbsenceWatch&) = delete;

  /// Returns the longest absence that has something in common with [from, until].
  std::optional<Absence> longest(TimePoint from, TimePoint until) const;

 private:
  static constexpr size_t kKept = 64;

  void watch(std::stop_token stop);
  /// The absence since the last tick, if it is one.
  std::optional<Absence> since_last_tick() const;

  mutable std::mutex mutex_;
  std::condition_variable_any stopped_;
  TimePoint last_tick_ = Clock::now();
  std::deque<Absence> absences_;  ///< the newest ones, in their order
  std::jthread thread_;
};

}  // namespace tokenyard
