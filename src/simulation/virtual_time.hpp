/// Time that passes only if nothing else can happen, so a timeout of minutes costs no wall time.
#pragma once

#include <algorithm>
#include <cstdint>

#include "simt/time_source.hpp"

namespace tokenyard::simulation {

class VirtualTime final : public simt::TimeSource {
 public:
  /// Advances the clock, so that no two events have the same time.
  uint64_t now_ns() override { return now_ns_ += 10; }
  /// Advances to the end of the next nap, and in growing steps the longer nothing happens, so that
  /// the deadline of a wait, which is unknown here, passes soon.
  void idle(uint32_t rounds, uint64_t wake_ns) override {
    const uint64_t jump = uint64_t{1000} << std::min(rounds, kDoublings);
    const uint64_t nap = wake_ns > now_ns_ ? wake_ns - now_ns_ : 0;
    const bool patient = rounds < kDoublings / 4;
    now_ns_ += patient && nap != 0 ? nap : std::max(jump, nap);
  }
  /// Allows so many rounds that hours of virtual time pass.
  uint32_t rounds_max() const override { return 2 * kDoublings; }

 private:
  static constexpr uint32_t kDoublings = 30;  // The largest step is 18 minutes.
  uint64_t now_ns_ = 1'000'000'000;
};

}  // namespace tokenyard::simulation
