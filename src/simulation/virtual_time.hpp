/// Time that passes only when nothing else can happen: a timeout of minutes costs no wall time.
#pragma once

#include <algorithm>
#include <cstdint>

#include "simt/time_source.hpp"

namespace tokenyard::simulation {

class VirtualTime final : public simt::TimeSource {
 public:
  /// Looking at the clock takes time too, so that no two events are at the same instant.
  uint64_t now_ns() override { return now_ns_ += 10; }
  /// To the end of the next nap; the longer nothing happens, the further at a time, so that the
  /// deadline of a wait, which nobody has told, is soon passed.
  void idle(uint32_t rounds, uint64_t wake_ns) override {
    const uint64_t jump = uint64_t{1000} << std::min(rounds, kDoublings);
    const uint64_t nap = wake_ns > now_ns_ ? wake_ns - now_ns_ : 0;
    const bool patient = rounds < kDoublings / 4;
    now_ns_ += patient && nap != 0 ? nap : std::max(jump, nap);
  }
  /// Past these, hours of virtual time have gone by.
  uint32_t rounds_max() const override { return 2 * kDoublings; }

 private:
  static constexpr uint32_t kDoublings = 30;  // 18 minutes a step
  uint64_t now_ns_ = 1'000'000'000;
};

}  // namespace tokenyard::simulation
