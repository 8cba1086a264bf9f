/// How a failed wait in a kernel becomes an exception on the host, and how the host ends the waits
/// of its kernels.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "device/accelerator.hpp"
#include "device/wait.hpp"

namespace tokenyard {

/// One a rank. Owns the alarm word; whoever notices that a rank is gone rings it.
class AlarmBell {
 public:
  explicit AlarmBell(Accelerator& accelerator);
  ~AlarmBell();
  const Alarm* word() const;
  void cancel();
  void lost(uint32_t rank);  ///< the first one stays in the word; all are listed
  std::vector<uint32_t> lost_ranks() const;
  /// Throws PeerLost or Cancelled if the bell has rung.
  void check(const std::string& phase) const;

 private:
  Accelerator& accelerator_;
  Alarm* word_;
};

/// The words a kernel's Patience points to, for one object that launches kernels.
class FailureCell {
 public:
  FailureCell(Accelerator& accelerator, AlarmBell& bell);
  ~FailureCell();
  Patience patience(std::chrono::nanoseconds timeout) const;
  bool failed() const;  ///< as far as the host can see now
  /// Throws PeerTimeout, PeerLost or Cancelled if a wait has failed. `phases` are the names of the
  /// kernel's Phase enum, as they should appear ("dispatch: counts").
  void check(std::span<const std::string> phases) const;

 private:
  Accelerator& accelerator_;
  AlarmBell& bell_;
  uint32_t* failed_;
  WaitReport* report_;
};

}  // namespace tokenyard
