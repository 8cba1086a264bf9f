/// Time that passes only if nothing else can happen, so a timeout of minutes costs no wall time.
#pragma once

#include <algorithm>
#include <cstdint>

#include "simt/time_source.hpp"

namespace tokenyard::simulation {

class VirtualTime final : public simt::TimeSource {
 public:
  /// Advances the clock, so that no two events have the same time, up to the end.
  uint64_t now_ns() override { return now_ns_ = std::min(now_ns_ + 10, end_ns_); }
  /// Advances to the end of the next nap, and in growing steps the longer nothing happens, so that
  /// the deadline of a wait, which is unknown here, passes soon.
  void idle(uint32_t rounds, uint64_t wake_ns) override {
    const uint64_t jump = uint64_t{1000} << std::min(rounds, kDoublings);
    const uint64_t nap = wake_ns > now_ns_ ? wake_ns - now_ns_ : 0;
    const bool patient = rounds < kDoublings / 4;
    if (end_ns_ != kNoEnd)
      now_ns_ = std::min(patient && nap != 0 ? now_ns_ + nap : end_ns_, end_ns_);
    else
      now_ns_ += patient && nap != 0 ? nap : std::max(jump, nap);
  }
  /// Allows so many rounds that hours of virtual time pass, or any number before the end.
  uint32_t rounds_max() const override {
    return end_ns_ == kNoEnd ? 2 * kDoublings : UINT32_MAX / 2;
  }

  /// Sets the time of the next event outside: until then, nothing is known to happen if no thread
  /// can run.
  void set_end(uint64_t end_ns) { end_ns_ = std::max(end_ns, now_ns_); }
  bool is_at_end() const { return now_ns_ == end_ns_; }
  void go_to_end() { now_ns_ = end_ns_; }

 private:
  static constexpr uint32_t kDoublings = 30;  // The largest step is 18 minutes.
  static constexpr uint64_t kNoEnd = UINT64_MAX;
  uint64_t now_ns_ = 1'000'000'000, end_ns_ = kNoEnd;
};

}  // namespace tokenyard::simulation
