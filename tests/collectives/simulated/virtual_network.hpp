/// Time that jumps from event to event, and a network in it. Messages of one stream stay in order,
/// streams overtake one another; a cut holds messages back as TCP does, and a death loses the end
/// of what was under way.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <queue>
#include <set>
#include <stdexcept>
#include <utility>
#include <vector>

#include "collectives/membership/roster.hpp"

namespace tokenyard::collectives::simulated {

class Schedule {
 public:
  using Action = std::function<void()>;

  Instant now() const { return now_; }
  void at(Instant when, Action action) {
    events_.push({std::max(when, now_), order_++, std::move(action)});
  }
  /// The next event, unless it lies beyond `end`: then nothing happens until there.
  bool step(Instant end) {
    if (events_.empty() || events_.top().when > end) {
      now_ = std::max(now_, end);
      return false;
    }
    now_ = events_.top().when;
    if (++steps_ > kStepsMax) throw std::runtime_error("the job is busy without end");
    const Action action = std::move(const_cast<Event&>(events_.top()).action);
    events_.pop();
    action();
    return true;
  }

 private:
  struct Event {
    Instant when;
    uint64_t order;
    Action action;
    bool operator<(const Event& other) const {
      return std::pair(when, order) > std::pair(other.when, other.order);
    }
  };
  static constexpr uint64_t kStepsMax = 2'000'000;
  Instant now_ = std::chrono::seconds(1);
  uint64_t order_ = 0, steps_ = 0;
  std::priority_queue<Event> events_;
};

using ProcessId = uint32_t;
/// The membership's connection, and those of operations.
enum class Stream : uint8_t { control, data };

class VirtualNetwork {
 public:
  using Delay = std::function<Instant(ProcessId from, ProcessId to)>;
  using Deliver = std::function<void()>;

  VirtualNetwork(Schedule& schedule, Delay delay) : schedule_(schedule), delay_(std::move(delay)) {}

  void send(ProcessId from, ProcessId to, Stream stream, Deliver deliver) {
    Pipe& pipe = pipes_[{from, to, stream}];
    if (schedule_.now() >= pipe.lost_from) return;
    if (pipe.cut) {
      pipe.held.push_back(std::move(deliver));
      return;
    }
    const Instant arrival = std::max(pipe.last_arrival, schedule_.now() + delay_(from, to));
    pipe.last_arrival = arrival;
    schedule_.at(arrival, [&pipe, arrival, deliver = std::move(deliver)] {
      if (arrival < pipe.lost_from) deliver();
    });
  }

  /// One way, all streams.
  void cut(ProcessId from, ProcessId to) {
    for (const Stream stream : {Stream::control, Stream::data})
      pipes_[{from, to, stream}].cut = true;
  }
  void heal(ProcessId from, ProcessId to) {
    for (const Stream stream : {Stream::control, Stream::data}) {
      Pipe& pipe = pipes_[{from, to, stream}];
      if (!std::exchange(pipe.cut, false)) continue;
      for (Deliver& deliver : std::exchange(pipe.held, {}))
        send(from, to, stream, std::move(deliver));
    }
  }
  bool is_cut(ProcessId from, ProcessId to) const {
    const auto found = pipes_.find({from, to, Stream::control});
    return found != pipes_.end() && found->second.cut;
  }
  void heal_all() {
    for (const auto& [ends, pipe] : pipes_) heal(std::get<0>(ends), std::get<1>(ends));
  }
  /// The sender dies: what would arrive from `lost_from` on never does.
  void lose(ProcessId from, ProcessId to, Stream stream, Instant lost_from) {
    Pipe& pipe = pipes_[{from, to, stream}];
    pipe.lost_from = lost_from;
    pipe.held.clear();
  }

 private:
  struct Pipe {
    bool cut = false;
    Instant last_arrival{}, lost_from = Instant::max();
    std::deque<Deliver> held;
  };
  Schedule& schedule_;
  const Delay delay_;
  std::map<std::tuple<ProcessId, ProcessId, Stream>, Pipe> pipes_;
};

}  // namespace tokenyard::collectives::simulated
