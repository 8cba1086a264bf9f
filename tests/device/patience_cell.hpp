/// The words that a Patience points to, for one kernel under test.
#pragma once

#include "device/device_array.hpp"
#include "device/wait.hpp"

namespace tokenyard::testing {

class PatienceCell {
 public:
  static constexpr uint32_t kRanks = 8;  ///< that may leave

  PatienceCell(Accelerator& accelerator, std::chrono::nanoseconds timeout)
      : accelerator_(accelerator),
        failed_(accelerator, 1),
        report_(static_cast<WaitReport*>(accelerator.allocate_shared(sizeof(WaitReport)))),
        alarm_(static_cast<Alarm*>(accelerator.allocate_shared((1 + kRanks) * sizeof(Alarm)))),
        patience{.timeout_ns = static_cast<uint64_t>(timeout.count()),
                 .failed = failed_.data(),
                 .alarm = alarm_,
                 .report = report_} {}
  ~PatienceCell() {
    accelerator_.free_shared(alarm_);
    accelerator_.free_shared(report_);
  }
  PatienceCell(const PatienceCell&) = delete;
  PatienceCell& operator=(const PatienceCell&) = delete;

  void ring(Alarm alarm) { accelerator_.write_flag(alarm_, alarm); }
  /// As a bell does for a rank that has said goodbye.
  void leave(uint32_t rank) {
    accelerator_.write_flag(alarm_ + 1 + rank, kLeft);
    ring(kLeft);
  }
  Alarm* alarm() { return alarm_; }
  /// After all that was launched.
  Failure failure() const { return static_cast<Failure>(failed_.read()[0]); }
  WaitReport report() const {
    drain(accelerator_);
    return *report_;
  }

 private:
  Accelerator& accelerator_;
  DeviceArray<uint32_t> failed_;
  WaitReport* report_;
  Alarm* alarm_;

 public:
  const Patience patience;
};

}  // namespace tokenyard::testing
