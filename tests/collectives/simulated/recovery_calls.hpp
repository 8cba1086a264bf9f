/// The calls by which a simulated program goes on after a failure: the library's own, each made
/// when its program gets to it, one after another.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "collectives/engine/recovery.hpp"
#include "simulation/random.hpp"

namespace tokenyard::collectives::simulated {

/// The call by which a program goes on when ranks are lost or a deadline has passed.
enum class GoesOnBy : uint8_t {
  shrink,
  replace,           ///< every lost rank, in an order of its own
  recover,           ///< with the ranks that are present
  recover_and_wait,  ///< waits for replacements
  replace_missing,   ///< deliberately wrong: a late rank misses nobody and calls nothing
};

class RecoveryCalls {
 public:
  struct Options {
    std::vector<GoesOnBy> ways = {GoesOnBy::shrink};  ///< drawn anew for each failure
    Instant late_most{};                              ///< longest delay of a call after the failure
    uint64_t seed = 0;
  };
  /// `look_at` schedules a call of `advance`.
  RecoveryCalls(Engine& engine, control::MembershipControl& control, Options options,
                std::function<Instant()> clock, std::function<void(Instant)> look_at)
      : options_(std::move(options)),
        clock_(std::move(clock)),
        look_at_(std::move(look_at)),
        recovery_(engine, control),
        random_(options_.seed) {}

  void begin(Slot self) { recovery_.begin(self); }
  /// Returns whether a call is under way or about to be made.
  bool active() const { return call_ != nullptr || !next_.empty(); }
  std::string awaited() const { return call_ ? call_->missing().phase : "its turn"; }

  /// Goes on after a failure; after a deadline, `lost` is empty.
  void go_on(std::vector<Slot> lost, const View& view) {
    if (active()) return;
    switch (options_.ways[random_.below(static_cast<uint32_t>(options_.ways.size()))]) {
      case GoesOnBy::shrink:
        return call([this] { return recovery_.shrink(); });
      case GoesOnBy::recover:
        return call([this] { return recovery_.recover(false); });
      case GoesOnBy::recover_and_wait:
        return call([this] { return recovery_.recover(true); });
      case GoesOnBy::replace_missing:
        std::erase_if(lost, [&](Slot slot) { return view.at(slot).has_value(); });
        if (lost.empty()) return;
        break;
      case GoesOnBy::replace:
        break;
    }
    if (lost.empty()) return call([this] { return recovery_.recover(true); });
    for (auto rest = lost.size(); rest > 1; --rest)
      std::swap(lost[rest - 1], lost[random_.below(static_cast<uint32_t>(rest))]);
    for (const Slot slot : lost) call([this, slot] { return recovery_.replace(slot); });
  }
  /// Makes two calls, each for one more rank.
  void grow_twice(uint32_t slots_max) {
    for (int times = 0; times < 2; ++times)
      call([this, slots_max] { return recovery_.grow(1, slots_max); });
  }
  void evict(Slot slot) {
    call([this, slot] { return recovery_.evict(slot); });
  }

  /// Returns whether the last of the calls has just ended.
  bool advance() {
    if (clock_() < not_before_) return false;
    const bool was_active = active();
    while (active()) {
      if (!call_) {
        call_ = next_.front()();
        next_.pop_front();
      }
      try {
        if (!call_->advance()) return false;
      } catch (const InvalidArgument&) {
        // Too few would remain; that ends the call too.
      }
      call_.reset();
    }
    return was_active;
  }

 private:
  using MakeCall = std::function<std::unique_ptr<Recovery::Call>()>;
  void call(MakeCall make) {
    if (!active()) {
      const auto most = static_cast<uint64_t>(options_.late_most.count()) + 1;
      not_before_ = clock_() + Instant(static_cast<int64_t>(random_.next() % most));
      look_at_(not_before_);
    }
    next_.push_back(std::move(make));
  }

  const Options options_;
  const std::function<Instant()> clock_;
  const std::function<void(Instant)> look_at_;
  Recovery recovery_;
  simulation::Random random_;
  Instant not_before_{};
  std::deque<MakeCall> next_;
  std::unique_ptr<Recovery::Call> call_;
};

}  // namespace tokenyard::collectives::simulated
