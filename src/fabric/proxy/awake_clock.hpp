/// A clock that stands still while its thread does not run: otherwise a thread that was stopped
/// would take its own silence for that of others.
#pragma once

#include <algorithm>
#include <chrono>
#include <utility>

#include "device/accelerator.hpp"

namespace tokenyard {

class AwakeClock {
 public:
  /// Called by the thread again and again.
  void tick(TimePoint now) {
    time_ += std::min<std::chrono::nanoseconds>(now - std::exchange(last_, now), kStepMax);
  }
  TimePoint now() const { return time_; }

 private:
  static constexpr std::chrono::milliseconds kStepMax{200};

  TimePoint last_ = Clock::now(), time_ = last_;
};

}  // namespace tokenyard
