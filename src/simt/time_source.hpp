/// The time that kernels under an executor see.
#pragma once

#include <cstdint>

namespace tokenyard::simt {

class TimeSource {
 public:
  virtual ~TimeSource() = default;
  virtual uint64_t now_ns() = 0;
  /// Called when no thread can run until something changes from outside or time passes. `rounds`
  /// counts such calls since something last happened; `wake_ns` is the time at which the next nap
  /// ends, or 0.
  virtual void idle(uint32_t rounds, uint64_t wake_ns) = 0;
  /// Returns how many idle rounds in a row mean a deadlock; no limit where real peers may answer.
  virtual uint32_t rounds_max() const { return UINT32_MAX; }
};

/// Wall time. Idling first yields the core, then naps: peers run on other threads or in other
/// processes, perhaps on this core.
class WallTime : public TimeSource {
 public:
  uint64_t now_ns() override;
  void idle(uint32_t rounds, uint64_t wake_ns) override;
};

}  // namespace tokenyard::simt
