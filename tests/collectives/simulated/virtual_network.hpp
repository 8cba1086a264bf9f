/// Time that jumps from event to event, and a network in it. Messages of one stream stay in order;
/// streams overtake one another. A cut holds messages back as TCP does, and a death loses the last
/// bytes under way.
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

#include "membership/roster.hpp"

namespace tokenyard::collectives::simulated {

class Schedule {
 public:
  using Action = std::function<void()>;

  /// Has time pass up to `until`, or less if `early` becomes true, since another event precedes
  /// that. Returns the time.
  using Pass = std::function<Instant(Instant until, const bool& early)>;

  Instant now() const { return now_; }
  void at(Instant when, Action action) {
    early_ = early_ || when < until_;
    events_.push({std::max(when, now_), order_++, std::move(action)});
  }
  /// Sets what happens between events; without it, nothing does.
  void between_events(Pass pass) { pass_ = std::move(pass); }
  /// Runs the next event, unless it is later than `end`: then time jumps to `end`.
  bool step(Instant end) {
    pass_until(end);
    if (events_.empty() || events_.top().when > end) {
      now_ = std::max(now_, end);
      return false;
    }
    now_ = std::max(now_, events_.top().when);
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

  void pass_until(Instant end) {
    until_ = events_.empty() ? end : std::min(end, events_.top().when);
    early_ = false;
    if (pass_ && until_ > now_) now_ = pass_(until_, early_);
    until_ = {};
  }

  Pass pass_;
  Instant until_{};     ///< while time passes: up to then
  bool early_ = false;  ///< an event has been added that is due before
  Instant now_ = std::chrono::seconds(1);
  uint64_t order_ = 0, steps_ = 0;
  std::priority_queue<Event> events_;
};

using ProcessId = uint32_t;
/// Of a pair: 0 is the membership's connection, the others carry operations.
using Stream = uint32_t;
inline constexpr Stream kControl = 0;

class VirtualNetwork {
 public:
  using Delay = std::function<Instant(ProcessId from, ProcessId to)>;
  using Deliver = std::function<void()>;

  VirtualNetwork(Schedule& schedule, Delay delay) : schedule_(schedule), delay_(std::move(delay)) {}

  void send(ProcessId from, ProcessId to, Stream stream, Deliver deliver) {
    Pair& pair = pairs_[{from, to}];
    Pipe& pipe = pair.pipes[stream];
    if (schedule_.now() >= pipe.lost_from || schedule_.now() >= pair.dead_from) return;
    if (pair.cut) {
      pipe.held.push_back(std::move(deliver));
      return;
    }
    const Instant arrival = std::max(pipe.last_arrival, schedule_.now() + delay_(from, to));
    pipe.last_arrival = arrival;
    schedule_.at(arrival, [&pipe, arrival, deliver = std::move(deliver)] {
      if (arrival < pipe.lost_from) deliver();
    });
  }

  /// Cuts one direction, all streams.
  void cut(ProcessId from, ProcessId to) { pairs_[{from, to}].cut = true; }
  void heal(ProcessId from, ProcessId to) {
    Pair& pair = pairs_[{from, to}];
    if (!std::exchange(pair.cut, false)) return;
    for (auto& [stream, pipe] : pair.pipes) {
      for (Deliver& deliver : std::exchange(pipe.held, {}))
        send(from, to, stream, std::move(deliver));
    }
  }
  bool is_cut(ProcessId from, ProcessId to) const {
    const auto found = pairs_.find({from, to});
    return found != pairs_.end() && found->second.cut;
  }
  void heal_all() {
    for (const auto& [ends, pair] : pairs_) heal(ends.first, ends.second);
  }
  /// The sender dies: control messages due after `control_end` never arrive, and each stream of
  /// operations ends at a time of its own.
  template <class Draw>
  void lose(ProcessId from, ProcessId to, Instant control_end, Draw draw) {
    Pair& pair = pairs_[{from, to}];
    pair.dead_from = schedule_.now();
    for (auto& [stream, pipe] : pair.pipes) {
      pipe.lost_from = stream == kControl ? control_end : schedule_.now() + draw();
      pipe.held.clear();
    }
  }

 private:
  struct Pipe {
    Instant last_arrival{}, lost_from = Instant::max();
    std::deque<Deliver> held;
  };
  struct Pair {
    bool cut = false;
    Instant dead_from = Instant::max();
    std::map<Stream, Pipe> pipes;
  };
  Schedule& schedule_;
  const Delay delay_;
  std::map<std::pair<ProcessId, ProcessId>, Pair> pairs_;
};

}  // namespace tokenyard::collectives::simulated
