/// A WaitContext with the memory that it points to, for one kernel under test.
#pragma once

#include "device/device_array.hpp"
#include "device/wait.hpp"

namespace tokenyard::testing {

class WaitContextCell {
 public:
  static constexpr uint32_t kRanks = 8;  ///< ranks that may leave

  WaitContextCell(Accelerator& accelerator, std::chrono::nanoseconds timeout)
      : accelerator_(accelerator),
        failed_(accelerator, 1),
        report_(static_cast<WaitReport*>(accelerator.allocate_shared(sizeof(WaitReport)))),
        abort_flag_(
            static_cast<AbortWord*>(accelerator.allocate_shared((1 + kRanks) * sizeof(AbortWord)))),
        wait_context{.timeout_ns = static_cast<uint64_t>(timeout.count()),
                     .failed = failed_.data(),
                     .abort_flag = abort_flag_,
                     .report = report_} {}
  ~WaitContextCell() {
    accelerator_.free_shared(abort_flag_);
    accelerator_.free_shared(report_);
  }
  WaitContextCell(const WaitContextCell&) = delete;
  WaitContextCell& operator=(const WaitContextCell&) = delete;

  void set(AbortWord abort_flag) { accelerator_.write_flag(abort_flag_, abort_flag); }
  /// Sets the abort flag as a bootstrap does for a rank that has said goodbye.
  void leave(uint32_t rank) {
    accelerator_.write_flag(abort_flag_ + 1 + rank, kLeft);
    set(kLeft);
  }
  AbortWord* abort_flag() { return abort_flag_; }
  /// Returns the failure word after all launched work.
  Failure failure() const { return static_cast<Failure>(failed_.read()[0]); }
  WaitReport report() const {
    drain(accelerator_);
    return *report_;
  }

 private:
  Accelerator& accelerator_;
  DeviceArray<uint32_t> failed_;
  WaitReport* report_;
  AbortWord* abort_flag_;

 public:
  const WaitContext wait_context;
};

}  // namespace tokenyard::testing
