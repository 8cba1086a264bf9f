/// Events in virtual time.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <queue>
#include <utility>
#include <vector>

#include "bench/across_hosts_model/costs.hpp"

namespace tokenyard::bench {

struct Lane;

class Events {
 public:
  struct Event {
    Time at;
    uint64_t number;
    Lane* lane;
    std::function<void()>* what;  ///< of an event without a lane
    std::vector<Lane*>* lanes;    ///< null: one lane, or none
    bool operator<(const Event& other) const {
      return at != other.at ? at > other.at : number > other.number;
    }
  };

  void resume(Time at, Lane* lane) { queue_.push({at, ++count_, lane, nullptr, nullptr}); }
  /// Resumes lanes one after the other: one event, since a warp's lanes meet again and again.
  void resume(Time at, std::vector<Lane*> lanes) {
    queue_.push({at, ++count_, nullptr, nullptr, new std::vector<Lane*>(std::move(lanes))});
  }
  void run(Time at, std::function<void()> what) {
    queue_.push({at, ++count_, nullptr, new std::function<void()>(std::move(what)), nullptr});
  }
  bool empty() const { return next_lane_ == lanes_.size() && queue_.empty(); }
  /// Returns the time of the next event; there must be one.
  Time next() const {
    if (next_lane_ == lanes_.size()) return queue_.top().at;
    return queue_.empty() ? lanes_at_ : std::min(lanes_at_, queue_.top().at);
  }
  Event take() {
    if (next_lane_ != lanes_.size() && (queue_.empty() || lanes_at_ <= queue_.top().at))
      return {lanes_at_, 0, lanes_[next_lane_++], nullptr, nullptr};
    const Event event = queue_.top();
    queue_.pop();
    if (event.lanes == nullptr) return event;
    const std::unique_ptr<std::vector<Lane*>> lanes(event.lanes);
    if (next_lane_ != lanes_.size()) {  // Others are under way, which are later.
      for (Lane* const lane : *lanes) resume(event.at, lane);
      return take();
    }
    lanes_ = std::move(*lanes);
    lanes_at_ = event.at;
    next_lane_ = 1;
    return {event.at, 0, lanes_[0], nullptr, nullptr};
  }

 private:
  std::priority_queue<Event> queue_;
  uint64_t count_ = 0;
  std::vector<Lane*> lanes_;  ///< of the event under way
  size_t next_lane_ = 0;
  Time lanes_at_ = 0;
};

}  // namespace tokenyard::bench
