/// The collective calls of a session, numbered alike on all ranks, and the launches of each.
///
/// Launch e of a rank ends only with the words of launch e of all ranks, and a rank publishes its
/// word only if its launch e - 1 has ended well. So if a rank has finished e, all have finished
/// e - 1: ranks differ by one launch at most.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

namespace tokenyard::device_collectives {

/// Returns the epoch from which a rank that has gone on counts replays of its graphs. Neither half
/// of it is another rank's, so no rank finds a word that it awaits.
constexpr uint64_t retired_epoch(uint64_t launches, uint32_t rank) {
  return launches + ((uint64_t{rank} + 1) << 40) + ((uint64_t{rank} + 1) << 19);
}

class CallLog {
 public:
  /// `calls`: finished in the sessions before.
  explicit CallLog(uint64_t calls) : before_(calls), calls_(calls), ended_(calls) {}

  /// Begins a call; `name` lives for ever. Each launch follows by `launched`, then `end`.
  void begin(const char* name) {
    ++calls_;
    at(calls_) = {launches_ + 1, name};
  }
  void launched() { ++launches_; }
  /// Ends a call that has failed on the host. It counts only if something was launched.
  void give_up() {
    if (at(calls_).end > launches_)
      --calls_;
    else
      end();
  }
  void end() {
    at(calls_).end = launches_;
    ended_ = calls_;
  }

  uint64_t before() const { return before_; }
  /// Returns the number of the last call.
  uint64_t calls() const { return calls_; }
  /// Returns the number of the last launch of a call; 0 if it is forgotten, since many followed.
  uint64_t end_of(uint64_t call) const { return is_kept(call) ? at(call).end : 0; }
  const char* name_of(uint64_t call) const { return is_kept(call) ? at(call).name : "a call"; }
  /// Returns the number of the last call all of whose launches are among the first ones.
  uint64_t finished_by(uint64_t launches) const {
    uint64_t call = ended_;
    while (call > before_ && end_of(call) > launches) --call;
    return call;
  }

 private:
  struct Entry {
    uint64_t end;
    const char* name;
  };
  /// More than a stream of CUDA holds: older calls have ended.
  static constexpr uint64_t kKept = 4096;

  bool is_kept(uint64_t call) const {
    return call > before_ && call <= calls_ && calls_ - call < kKept;
  }
  Entry& at(uint64_t call) { return entries_[call % kKept]; }
  const Entry& at(uint64_t call) const { return entries_[call % kKept]; }

  const uint64_t before_;
  uint64_t calls_, ended_, launches_ = 0;
  std::array<Entry, kKept> entries_{};
};

}  // namespace tokenyard::device_collectives
