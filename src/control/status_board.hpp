/// The state that the control thread publishes to the other threads of its process.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "control/counters.hpp"
#include "control/words.hpp"

namespace tokenyard::control {

struct Standing {
  /// Links whose endpoint has arrived too, and the size that each process was given.
  std::map<Member, uint32_t> linked;
  std::set<Member> ended;                  ///< processes with which a link has ended
  std::map<Member, std::string> troubles;  ///< dial errors, until there is a view
  std::optional<View> view;                ///< set once this process is a member
  std::vector<Member> waiting;
  std::vector<Slot> recovers_late;
  std::optional<std::string> over;  ///< why this process is no longer a member
  bool alone = false;               ///< too few members answer to agree on anything
  bool left = false;                ///< no member counts on this process
  bool silent = false;              ///< all queued messages have been sent
};

class StatusBoard {
 public:
  Standing read() const {
    const std::lock_guard lock(mutex_);
    return standing_;
  }
  template <class Change>
  void write(Change change) {
    {
      const std::lock_guard lock(mutex_);
      change(standing_);
      ++changes_;
    }
    changed_.notify_all();
  }
  void count(uint64_t ControlCounters::*what, uint64_t more = 1) {
    const std::lock_guard lock(mutex_);
    counters_.*what += more;
  }
  ControlCounters counters() const {
    const std::lock_guard lock(mutex_);
    return counters_;
  }
  /// Waits for a change since the last call, or until the time is up. One caller at a time.
  void wait_for_news(std::chrono::nanoseconds at_most) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, at_most, [this] { return changes_ != read_; });
    read_ = changes_;
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Standing standing_;
  ControlCounters counters_;
  uint64_t changes_ = 0, read_ = 0;
};

}  // namespace tokenyard::control
