/// Turns a failed wait in a kernel into an exception on the host, and lets the host end the waits
/// of its kernels.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "device/accelerator.hpp"
#include "device/device_memory.hpp"
#include "device/wait.hpp"
#include "fabric/absence_watch.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard {

/// Returns `phase`, marked if the wait failed because the awaited rank has left.
std::string after_goodbye(std::string phase, Failure failure = Failure::left);

/// One per rank. Owns the abort words; the thread that notices the loss of a rank sets them. Any
/// thread may set and read it.
class AbortFlag {
 public:
  /// `ranks`: that may leave. `timeout`: after which they take a silent rank for gone. `absences`:
  /// of this rank, where they are watched.
  explicit AbortFlag(Accelerator& accelerator, uint32_t ranks = 0,
                     std::chrono::nanoseconds timeout = {},
                     std::shared_ptr<const AbsenceWatch> absences = nullptr);
  ~AbortFlag();
  AbortFlag(const AbortFlag&) = delete;
  AbortFlag& operator=(const AbortFlag&) = delete;

  const AbortWord* word() const { return word_; }
  /// Ends every wait of this rank, of kernels and of the host, from now on.
  void cancel();
  bool cancelled() const { return cancelled_.load(); }
  /// Records a rank lost without a goodbye. The word keeps the first one; all are listed.
  void lost(uint32_t rank);
  /// A rank has said goodbye. Ends waits for what it alone could still send: what it has sent
  /// before counts, and other ranks are still waited for.
  void left(uint32_t rank);
  /// Records that a rank rebuilds the world without this one. Ends every wait.
  void left_out(uint32_t by);
  /// Returns all ranks that were lost or have left, ascending.
  std::vector<uint32_t> gone_ranks() const;
  /// Returns those of them that went without a goodbye.
  std::vector<uint32_t> lost_ranks() const;
  bool has_left(uint32_t rank) const;
  /// For waits that a rank's loss concerns only if it is that rank they wait for: [ranks] words,
  /// in memory that host and kernels share. A lost rank rings its own, one that has left sets it to
  /// kLeft, `cancel` rings all of them; what has rung before rings at once. They must stay until
  /// `unwatch`.
  void watch(std::span<AbortWord> words);
  void unwatch(std::span<AbortWord> words);
  /// For a wait, before it goes on: throws OutOfTouch if this rank has been left out.
  void check_left_out(const WaitFacts& facts) const;
  /// The same for one that has no rank, and Cancelled.
  void check_ended(const std::string& phase) const;
  /// For a wait that has failed after `waited`: throws OutOfTouch if this rank has not run for so
  /// long meanwhile, or when the awaited rank went, that the others may have taken it for gone.
  void check_absence(const WaitFacts& facts) const;
  /// Throws PeerLost or Cancelled if the flag is set.
  void check(const std::string& phase) const;

 private:
  void set(AbortWord abort_flag);
  void set_one(std::span<AbortWord> words, uint32_t rank, AbortWord abort_flag);
  void set_all(AbortWord abort_flag);
  void note_gone(uint32_t rank);
  std::optional<Absence> absence_around(TimePoint from, TimePoint until) const;

  Accelerator& accelerator_;
  const uint32_t ranks_;
  const std::chrono::nanoseconds timeout_;
  const std::shared_ptr<const AbsenceWatch> absences_;
  AbortWord* word_;  ///< [1 + ranks]
  mutable std::mutex mutex_;
  std::atomic<bool> cancelled_ = false;
  bool is_set_ = false;
  std::vector<uint32_t> lost_, left_;  ///< ascending
  std::optional<uint32_t> left_out_by_;
  TimePoint left_out_at_;
  std::map<uint32_t, TimePoint> gone_at_;  ///< when this rank heard that they were gone
  std::vector<std::span<AbortWord>> watched_;
};

/// The words that a kernel's WaitContext points to, for one object that launches kernels.
class ErrorRecord {
 public:
  ErrorRecord(Accelerator& accelerator, AbortFlag& abort_flag);

  WaitContext wait_context(std::chrono::nanoseconds timeout) const;
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
  AbortFlag& abort_flag_;
  DeviceMemory failed_;  ///< a word
  DeviceMemory report_;  ///< WaitReport, which the host sees
};

}  // namespace tokenyard
