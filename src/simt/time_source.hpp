/// Time, as kernels under an executor see it.
#pragma once

#include <cstdint>

namespace tokenyard::simt {

class TimeSource {
 public:
  virtual ~TimeSource() = default;
  virtual uint64_t now_ns() = 0;
  /// Nobody can run until something changes from outside or time has passed. `rounds` counts how
  /// often this was called with nothing having happened in between; `wake_ns` is when the next nap
  /// ends, or 0.
  virtual void idle(uint32_t rounds, uint64_t wake_ns) = 0;
  /// Idle rounds in a row after which nothing will ever happen. Real peers may always answer yet.
  virtual uint32_t rounds_max() const { return UINT32_MAX; }
};

/// Wall time. Idling spins a little, then yields the core, then naps: peers run on other threads or
/// in other processes, maybe on this core.
class WallTime : public TimeSource {
 public:
  uint64_t now_ns() override;
  void idle(uint32_t rounds, uint64_t wake_ns) override;
};

}  // namespace tokenyard::simt
