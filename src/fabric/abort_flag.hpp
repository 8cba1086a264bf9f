/// Turns a failed wait in a kernel into an exception on the host, and lets the host end the waits
/// of its kernels.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
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

/// Returns `phase`, with a note appended if the wait failed because the awaited rank left.
std::string after_goodbye(std::string phase, Failure failure = Failure::left);

/// One per rank. Owns the abort words that kernels poll; the thread that notices the loss of a rank
/// sets them. Any thread may set and read it.
class AbortFlag {
 public:
  /// `ranks`: number of ranks that may leave. `timeout`: how long peers wait for a silent rank
  /// before they take it for dead. `absences`: this rank's own, null if they are not watched.
  explicit AbortFlag(Accelerator& accelerator, uint32_t ranks = 0,
                     std::chrono::nanoseconds timeout = {},
                     std::shared_ptr<const AbsenceWatch> absences = nullptr);
  ~AbortFlag();
  AbortFlag(const AbortFlag&) = delete;
  AbortFlag& operator=(const AbortFlag&) = delete;

  const AbortWord* word() const { return word_; }
  /// Returns the word, for a network's kernel that stores kRefused there.
  AbortWord* word_to_refuse() { return word_; }
  /// Ends every wait of this rank, in kernels and on the host, from now on.
  void cancel();
  bool cancelled() const { return cancelled_.load(); }
  /// Records the loss of a rank that said no goodbye. The abort word keeps the first such rank;
  /// `lost_ranks` lists all.
  void lost(uint32_t rank);
  /// Records a rank's goodbye. Ends only waits for data that it has not sent: its earlier data
  /// still counts, and waits for other ranks continue.
  void left(uint32_t rank);
  /// Records that a rank goes on in another world and sends nothing more in this one. Ends waits as
  /// `left` does, but the rank is not gone: it may meet this one again.
  void gone_on(uint32_t rank);
  /// Records that rank `by` rebuilds the world without this one. Ends every wait.
  void left_out(uint32_t by);
  /// Returns all ranks that were lost or left, ascending.
  std::vector<uint32_t> gone_ranks() const {
    return ranks_that([](const Gone& gone) { return gone.lost || gone.left; });
  }
  /// Returns the ranks that went without a goodbye, ascending.
  std::vector<uint32_t> lost_ranks() const { return ranks_that(&Gone::lost); }
  /// Returns whether the rank has left or gone on.
  bool has_left(uint32_t rank) const {
    const auto ranks = ranks_that([](const Gone& gone) { return gone.left || gone.gone_on; });
    return std::ranges::binary_search(ranks, rank);
  }
  bool has_gone_on(uint32_t rank) const {
    return std::ranges::binary_search(ranks_that(&Gone::gone_on), rank);
  }
  /// Registers [ranks] abort words, in memory shared by host and kernels, for waits that should end
  /// only if the awaited rank itself is gone. A loss sets the rank's word to abort_for_lost(rank),
  /// a goodbye or a rank that goes on sets it to kLeft, and `cancel` and `left_out` set every word
  /// to kCancelled; earlier events are applied at once. The words must stay valid until `unwatch`.
  void watch(std::span<AbortWord> words);
  void unwatch(std::span<AbortWord> words);
  /// Sets what throws NetworkFault if a request of this rank was refused, before any kernel runs;
  /// empty: nothing does. `check_refused` calls it, since a wait that a refusal has ended, or made
  /// late, may be one that posted nothing. It may wait for the job to tell of a peer's end first.
  void on_refusal(std::function<void(const std::string& phase)> check);
  void check_refused(const std::string& phase) const;
  /// Has waits that begin now end no more because a request was refused. `remains` says whether
  /// another one was, and is asked once they would go on: a refusal meanwhile is not lost.
  void forget_refusal(const std::function<bool()>& remains);
  /// Records that another rank's network has failed, as its `facts` tell: other hosts do not reach
  /// that rank any more. Ends every wait, and `check_refused` throws the fault; words that are
  /// watched read as after a loss of the rank.
  void network_failed(const NetworkFault::Facts& facts);
  /// Returns whether `cancel`, `left_out` or a loss ends this rank's waits.
  bool has_ended() const;
  /// Throws OutOfTouch if this rank has been left out. Waits call it before they continue.
  void check_left_out(const WaitFacts& facts) const;
  /// Throws Cancelled, or OutOfTouch as above; for a wait that names no rank.
  void check_ended(const std::string& phase) const;
  /// For a wait that failed after `facts.waited_s`: throws OutOfTouch if this rank was not running
  /// for so long, during the wait or in the timeout before the awaited rank went, that its peers
  /// may have taken it for dead.
  void check_absence(const WaitFacts& facts) const;
  /// Throws Cancelled after `cancel`, PeerLost naming the lowest lost rank after a loss.
  void check(const std::string& phase) const;

 private:
  struct Gone {
    TimePoint at = Clock::now();  ///< when this rank learned of it
    bool lost = false, left = false, gone_on = false;
  };

  using How = std::function<bool(const Gone&)>;

  std::vector<uint32_t> ranks_that(const How& how) const;  ///< ascending
  void set(AbortWord abort_flag);
  void set_one(std::span<AbortWord> words, uint32_t rank, AbortWord abort_flag);
  void set_all(AbortWord abort_flag);
  void end_waits_for_unsent(uint32_t rank);
  std::optional<Absence> absence_around(TimePoint from, TimePoint until) const;

  Accelerator& accelerator_;
  const uint32_t ranks_;
  const std::chrono::nanoseconds timeout_;
  const std::shared_ptr<const AbsenceWatch> absences_;
  AbortWord* word_;  ///< [1 + ranks] the flag itself, then each rank's goodbye
  mutable std::mutex mutex_;
  std::atomic<bool> cancelled_ = false;
  bool is_set_ = false;
  std::map<uint32_t, Gone> gone_;
  std::optional<uint32_t> left_out_by_;
  TimePoint left_out_at_;
  std::vector<std::span<AbortWord>> watched_;
  std::function<void(const std::string& phase)> check_refused_;
  std::optional<NetworkFault::Facts> failed_network_;  ///< the first that was told
};

/// Owns the words that a kernel's WaitContext points to; one per object that launches kernels.
class ErrorRecord {
 public:
  ErrorRecord(Accelerator& accelerator, AbortFlag& abort_flag);

  WaitContext wait_context(std::chrono::nanoseconds timeout) const;
  /// Forgets a failure, while no kernel runs.
  void clear();
  bool failed() const;  ///< whether the host sees a failure yet
  /// Replaces the rank of a failed wait, and its phase, by those that an error should name.
  using Culprit = std::function<void(WaitFacts& facts)>;
  /// Throws PeerTimeout, PeerLost, OutOfTouch, NetworkFault or Cancelled if a wait has failed.
  /// `phases` names the values of the kernel's Phase enum as errors show them ("dispatch: counts").
  /// `culprit`: called where the awaited rank may itself have waited for another one.
  /// Returns, with failed() true, if the kernel refused (Failure::refused): only its launcher knows
  /// the reason.
  void check(std::span<const std::string> phases, const Culprit& culprit = {}) const;
  /// Returns what the failed wait saw; valid once failed().
  const WaitReport& report() const { return *report_.as<WaitReport>(); }

 private:
  Accelerator& accelerator_;
  AbortFlag& abort_flag_;
  DeviceMemory failed_;  ///< one uint32_t
  DeviceMemory report_;  ///< one WaitReport, readable by the host
};

}  // namespace tokenyard
