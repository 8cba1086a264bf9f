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
    Lane* lane;
    std::function<void()>* what;  ///< of an event without a lane
  };

  void resume(Time at, Lane* lane) { push(at, Kind::lane, lane); }
  /// Resumes lanes one after the other: one event, since a warp's lanes meet again and again.
  void resume(Time at, std::vector<Lane*> lanes) {
    push(at, Kind::lanes, new std::vector<Lane*>(std::move(lanes)));
  }
  void run(Time at, std::function<void()> what) {
    push(at, Kind::what, new std::function<void()>(std::move(what)));
  }
  bool empty() const { return next_lane_ == lanes_.size() && queue_.empty(); }
  /// Returns the time of the next event; there must be one.
  Time next() const {
    if (next_lane_ == lanes_.size()) return queue_.top().at;
    return queue_.empty() ? lanes_at_ : std::min(lanes_at_, queue_.top().at);
  }
  Event take() {
    if (next_lane_ != lanes_.size() && (queue_.empty() || lanes_at_ <= queue_.top().at))
      return {lanes_at_, lanes_[next_lane_++], nullptr};
    const Queued event = queue_.top();
    queue_.pop();
    switch (static_cast<Kind>(event.number % kKinds)) {
      case Kind::lane:
        return {event.at, static_cast<Lane*>(event.what), nullptr};
      case Kind::what:
        return {event.at, nullptr, static_cast<std::function<void()>*>(event.what)};
      case Kind::lanes:
        break;
    }
    const std::unique_ptr<std::vector<Lane*>> lanes(static_cast<std::vector<Lane*>*>(event.what));
    if (next_lane_ != lanes_.size()) {  // Others are under way, which are later.
      for (Lane* const lane : *lanes) resume(event.at, lane);
      return take();
    }
    lanes_ = std::move(*lanes);
    lanes_at_ = event.at;
    next_lane_ = 1;
    return {event.at, lanes_[0], nullptr};
  }

 private:
  enum class Kind : uint8_t { lane, lanes, what };
  static constexpr uint64_t kKinds = 4;
  struct Queued {
    Time at;
    uint64_t number;  ///< kKinds times its place in the order of events, plus its kind
    void* what;
    bool operator<(const Queued& other) const {
      return at != other.at ? at > other.at : number > other.number;
    }
  };
  void push(Time at, Kind kind, void* what) {
    queue_.push({at, ++count_ * kKinds + static_cast<uint64_t>(kind), what});
  }

  std::priority_queue<Queued> queue_;
  uint64_t count_ = 0;
  std::vector<Lane*> lanes_;  ///< of the event under way
  size_t next_lane_ = 0;
  Time lanes_at_ = 0;
};

}  // namespace tokenyard::bench
