/// How a failed wait in a kernel becomes an exception on the host, and how the host ends the waits
/// of its kernels.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "device/accelerator.hpp"
#include "device/device_memory.hpp"
#include "device/wait.hpp"

namespace tokenyard {

/// One a rank. Owns the alarm word; whoever notices that a rank is gone rings it. Any thread may
/// ring and ask.
class AlarmBell {
 public:
  explicit AlarmBell(Accelerator& accelerator);
  ~AlarmBell();
  AlarmBell(const AlarmBell&) = delete;
  AlarmBell& operator=(const AlarmBell&) = delete;

  const Alarm* word() const { return word_; }
  /// Ends every wait of this rank, of kernels and of the host, from now on.
  void cancel();
  bool cancelled() const { return cancelled_.load(); }
  /// A rank is gone without a word. The first one stays in the word; all are listed.
  void lost(uint32_t rank);
  /// A rank has said goodbye. Rings nothing: what it owed to a call it may well have done before.
  void left(uint32_t rank);
  /// Ranks that are gone, either way, ascending.
  std::vector<uint32_t> gone_ranks() const;
  /// Those of them that went without a word.
  std::vector<uint32_t> lost_ranks() const;
  bool has_left(uint32_t rank) const;
  /// For waits that a rank's loss concerns only if it is that rank they wait for: [ranks] words,
  /// in memory that host and kernels share. A lost rank rings its own, `cancel` all of them; what
  /// has rung before rings at once. They must stay until `unwatch`.
  void watch(std::span<Alarm> words);
  void unwatch(std::span<Alarm> words);
  /// Throws PeerLost or Cancelled if the bell has rung.
  void check(const std::string& phase) const;

 private:
  void ring(Alarm alarm);
  void ring_one(std::span<Alarm> words, uint32_t rank);

  Accelerator& accelerator_;
  Alarm* word_;
  mutable std::mutex mutex_;
  std::atomic<bool> cancelled_ = false;
  bool rung_ = false;
  std::vector<uint32_t> lost_, left_;  ///< ascending
  std::vector<std::span<Alarm>> watched_;
};

/// The words a kernel's Patience points to, for one object that launches kernels.
class FailureCell {
 public:
  FailureCell(Accelerator& accelerator, AlarmBell& bell);

  Patience patience(std::chrono::nanoseconds timeout) const;
  bool failed() const;  ///< as far as the host can see now
  /// Throws PeerTimeout, PeerLost or Cancelled if a wait has failed. `phases` are the names of the
  /// kernel's Phase enum, as they should appear ("dispatch: counts"). A kernel that refused
  /// (Failure::refused) has a reason of its own, which its launcher knows: returns then, with
  /// failed() true.
  void check(std::span<const std::string> phases) const;
  /// What the failed wait saw; meaningful once failed().
  const WaitReport& report() const { return *report_.as<WaitReport>(); }

 private:
  Accelerator& accelerator_;
  AlarmBell& bell_;
  DeviceMemory failed_;  ///< a word
  DeviceMemory report_;  ///< WaitReport, which the host sees
};

}  // namespace tokenyard
