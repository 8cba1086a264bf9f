/// Events in virtual time.
#pragma once

#include <algorithm>
#include <array>
#include <deque>
#include <functional>
#include <queue>
#include <utility>
#include <vector>

#include "bench/across_hosts_model/costs.hpp"

namespace tokenyard::bench {

struct Lane;

/// A queue of lanes that go on and of functions that run, by time, then in the order in which they
/// were added. Lanes that are added one after the other for the same time, as a warp's are, share
/// an entry.
class Events {
 public:
  struct Event {
    Time at;
    Lane* lane;
    std::function<void()>* what;  ///< of an event without a lane
  };

  void resume(Time at, Lane* lane) {
    if (open_ == nullptr || open_at_ != at || open_->count == open_->lanes.size()) {
      open_ = taken_from_pool();
      open_at_ = at;
      queue_.push({at, ++count_, open_, nullptr});
    }
    open_->lanes[open_->count++] = lane;
  }
  void run(Time at, std::function<void()> what) {
    open_ = nullptr;
    queue_.push({at, ++count_, nullptr, new std::function<void()>(std::move(what))});
  }
  bool empty() const { return batch_ == nullptr && queue_.empty(); }
  /// Returns the time of the next event; there must be one.
  Time next() const {
    if (batch_ == nullptr) return queue_.top().at;
    return queue_.empty() ? batch_at_ : std::min(batch_at_, queue_.top().at);
  }
  Event take() {
    if (batch_ == nullptr || (!queue_.empty() && queue_.top().at < batch_at_)) {
      const Entry entry = queue_.top();
      queue_.pop();
      if (entry.batch == nullptr) return {entry.at, nullptr, entry.what};
      if (batch_ != nullptr) put_off();
      if (open_ == entry.batch) open_ = nullptr;
      batch_ = entry.batch;
      batch_at_ = entry.at;
      next_lane_ = 0;
    }
    const Event event{batch_at_, batch_->lanes[next_lane_++], nullptr};
    if (next_lane_ == batch_->count) pool_.push_back(std::exchange(batch_, nullptr));
    return event;
  }

 private:
  struct Batch {
    uint32_t count = 0;
    std::array<Lane*, 32> lanes{};
  };
  struct Entry {
    Time at;
    uint64_t number;
    Batch* batch;
    std::function<void()>* what;
    bool operator<(const Entry& other) const {
      return at != other.at ? at > other.at : number > other.number;
    }
  };

  Batch* taken_from_pool() {
    if (pool_.empty()) return &batches_.emplace_back();
    Batch* const batch = pool_.back();
    pool_.pop_back();
    batch->count = 0;
    return batch;
  }
  /// Puts the lanes of the batch under way back: something earlier has come.
  void put_off() {
    std::copy(batch_->lanes.begin() + next_lane_, batch_->lanes.begin() + batch_->count,
              batch_->lanes.begin());
    batch_->count -= next_lane_;
    queue_.push({batch_at_, ++count_, batch_, nullptr});
  }

  std::priority_queue<Entry> queue_;
  uint64_t count_ = 0;
  std::deque<Batch> batches_;
  std::vector<Batch*> pool_;
  Batch* open_ = nullptr;  ///< the entry that was added last, if lanes
  Time open_at_ = 0;
  Batch* batch_ = nullptr;  ///< under way
  Time batch_at_ = 0;
  uint32_t next_lane_ = 0;
};

}  // namespace tokenyard::bench
