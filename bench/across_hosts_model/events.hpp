/// Events in virtual time.
#pragma once

#include <functional>
#include <queue>
#include <utility>
#include <vector>

#include "bench/across_hosts_model/costs.hpp"

namespace tokenyard::bench {

struct Lane;

class Events {
 public:
  void resume(Time at, Lane* lane) { queue_.push({at, ++count_, lane, nullptr}); }
  void run(Time at, std::function<void()> what) {
    queue_.push({at, ++count_, nullptr, new std::function<void()>(std::move(what))});
  }
  bool empty() const { return queue_.empty(); }
  /// Returns the time of the next event; there must be one.
  Time next() const { return queue_.top().at; }

  struct Event {
    Time at;
    uint64_t number;
    Lane* lane;
    std::function<void()>* what;  ///< null: the lane goes on
    bool operator<(const Event& other) const {
      return at != other.at ? at > other.at : number > other.number;
    }
  };
  Event take() {
    const Event event = queue_.top();
    queue_.pop();
    return event;
  }

 private:
  std::priority_queue<Event> queue_;
  uint64_t count_ = 0;
};

}  // namespace tokenyard::bench
