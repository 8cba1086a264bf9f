#include "collectives/engine/recovery.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace tokenyard::collectives {

namespace {

std::vector<Slot> empty_slots(const View& view) {
  std::vector<Slot> empty;
  for (Slot slot = 0; slot < view.slots; ++slot) {
    if (!view.at(slot)) empty.push_back(slot);
  }
  return empty;
}

}  // namespace

/// Requests to fill slots, withdrawn when destroyed.
class Recovery::Wish {
 public:
  explicit Wish(control::MembershipControl& control) : control_(control) {}
  ~Wish() {
    if (!slots_.empty()) control_.withdraw(slots_);
  }
  Wish(const Wish&) = delete;
  Wish& operator=(const Wish&) = delete;

  /// Repeats the request if it has changed, and in each epoch: a request for a slot that is held
  /// lasts for one epoch.
  void want(const std::vector<Slot>& slots, Epoch seen_in) {
    if (slots == slots_ && seen_in == seen_in_) return;
    if (slots != slots_ && !slots_.empty()) control_.withdraw(slots_);
    slots_ = slots;
    seen_in_ = seen_in;
    if (!slots_.empty()) control_.admit(slots_, seen_in);
  }

 private:
  control::MembershipControl& control_;
  std::vector<Slot> slots_;
  Epoch seen_in_ = 0;
};

class Recovery::Shrink final : public Recovery::Call {
 public:
  explicit Shrink(Recovery& recovery)
      : recovery_(recovery), asked_in_(recovery.engine_.view().epoch) {
    const Engine& engine = recovery_.engine_;
    // Done already for a newcomer that has nothing to recover from.
    done_before_ = engine.recovered().epoch > recovery_.shrunk_in() && !engine.failed();
    if (!done_before_) recovery_.control_.recover(true);
  }

  bool advance() override {
    const Epoch recovered = recovery_.engine_.recovered().epoch;
    if (!done_before_ && recovered <= asked_in_) return false;
    recovery_.note_shrunk(recovered);
    return true;
  }

  WaitFacts missing() const override {
    const std::vector<Slot> late = recovery_.control_.recovers_late();
    if (late.empty()) {
      const std::vector<Member> members = recovery_.engine_.view().members;
      return {.rank = members.empty() ? 0 : members.front().slot,
              .phase = "shrink: wait for the ranks to agree"};
    }
    return {.rank = late.front(), .phase = "shrink: wait for this rank's call"};
  }

 private:
  Recovery& recovery_;
  const Epoch asked_in_;
  bool done_before_ = false;
};

class Recovery::Replace final : public Recovery::Call {
 public:
  Replace(Recovery& recovery, Slot slot)
      : engine_(recovery.engine_), slot_(slot), wish_(recovery.control_) {}

  bool advance() override {
    if (!engine_.refilled(slot_)) {
      wish_.want({slot_}, engine_.view().epoch);
      return false;
    }
    // Not a reason for a request, which would have the replacement itself replaced.
    if (engine_.frozen()) return false;
    engine_.repair_loss(slot_);
    return true;
  }

  WaitFacts missing() const override {
    return {.rank = slot_, .phase = fmt::format("replace: wait for a new rank {}", slot_)};
  }

 private:
  Engine& engine_;
  const Slot slot_;
  Wish wish_;
};

class Recovery::Grow final : public Recovery::Call {
 public:
  Grow(Recovery& recovery, std::vector<Slot> slots)
      : recovery_(recovery), slots_(std::move(slots)), wish_(recovery.control_) {}

  bool advance() override {
    Engine& engine = recovery_.engine_;
    std::vector<Slot> missing;
    for (const Slot slot : slots_) {
      if (!engine.was_filled(slot)) missing.push_back(slot);
    }
    wish_.want(missing, engine.view().epoch);
    if (!missing.empty() || engine.frozen()) return false;
    const std::lock_guard lock(recovery_.mutex_);
    recovery_.slots_ = std::max(recovery_.slots_, slots_.back() + 1);
    return true;
  }

  WaitFacts missing() const override {
    const auto first = std::find_if(slots_.begin(), slots_.end(),
                                    [&](Slot slot) { return !recovery_.engine_.was_filled(slot); });
    return {.rank = first != slots_.end() ? *first : slots_.back(),
            .phase = fmt::format("grow: wait for {} new ranks", slots_.size())};
  }

 private:
  Recovery& recovery_;
  const std::vector<Slot> slots_;
  Wish wish_;
};

class Recovery::Recover final : public Recovery::Call {
 public:
  Recover(Recovery& recovery, bool waits)
      : recovery_(recovery), waits_(waits), wish_(recovery.control_) {}
  ~Recover() override { stop_recovering(); }

  bool advance() override {
    Engine& engine = recovery_.engine_;
    // If ranks are lost meanwhile, the group stops on all its ranks, so all know.
    if (engine.stopped()) {
      if (!recovering_) recovering_.emplace(recovery_);
      if (!recovering_->advance()) return false;
    }
    stop_recovering();
    const View view = engine.view();
    const std::vector<Slot> empty = waits_ ? empty_slots(view) : std::vector<Slot>{};
    wish_.want(empty, view.epoch);
    if (!empty.empty() || engine.frozen()) return false;
    engine.repair(view.epoch);
    return true;
  }

  WaitFacts missing() const override {
    if (recovering_) {
      WaitFacts facts = recovering_->missing();
      facts.phase = "recover after a deadline, as " + facts.phase;
      return facts;
    }
    const std::vector<Slot> empty = empty_slots(recovery_.engine_.view());
    if (empty.empty()) return {.phase = "recover: wait for the ranks to agree"};
    return {.rank = empty.front(),
            .phase = fmt::format("recover: wait for a new rank {}", empty.front())};
  }

 private:
  void stop_recovering() {
    if (!recovering_) return;
    recovering_.reset();
    recovery_.control_.recover(false);
  }

  Recovery& recovery_;
  const bool waits_;
  Wish wish_;
  std::optional<Shrink> recovering_;
};

class Recovery::Evict final : public Recovery::Call {
 public:
  Evict(Recovery& recovery, const Member& member) : recovery_(recovery), member_(member) {}

  bool advance() override {
    const View view = recovery_.engine_.view();
    if (!view.contains(member_)) return true;
    if (view.members.size() <= 2) {
      throw InvalidArgument("rank", "a rank whose loss leaves a majority",
                            fmt::format("{} of two", member_.slot));
    }
    // A request lasts for one epoch; the last one may have come too late.
    if (std::exchange(asked_in_, view.epoch) != view.epoch) recovery_.control_.evict(member_);
    return false;
  }

  WaitFacts missing() const override {
    return {.rank = member_.slot, .phase = "evict: wait for the ranks to agree"};
  }

 private:
  Recovery& recovery_;
  const Member member_;
  Epoch asked_in_ = 0;
};

void Recovery::begin(Slot self) {
  // Losses before this process came do not concern it.
  engine_.repair(engine_.came_in(self));
  const std::lock_guard lock(mutex_);
  shrunk_in_ = engine_.recovered().epoch;
  slots_ = engine_.slots_found();
}

Epoch Recovery::shrunk_in() const {
  const std::lock_guard lock(mutex_);
  return shrunk_in_;
}

void Recovery::note_shrunk(Epoch epoch) {
  const std::lock_guard lock(mutex_);
  shrunk_in_ = epoch;
}

std::unique_ptr<Recovery::Call> Recovery::shrink() {
  return std::make_unique<Shrink>(*this);
}

std::unique_ptr<Recovery::Call> Recovery::replace(Slot slot) {
  const uint32_t slots = engine_.view().slots;
  if (slot >= slots) {
    throw InvalidArgument("rank", fmt::format("a rank of {}", slots), fmt::to_string(slot));
  }
  return std::make_unique<Replace>(*this, slot);
}

std::unique_ptr<Recovery::Call> Recovery::grow(uint32_t slots, uint32_t slots_most) {
  const uint32_t before = [&] {
    const std::lock_guard lock(mutex_);
    return slots_;
  }();
  const uint32_t room = slots_most > before ? slots_most - before : 0;
  if (slots == 0 || slots > room) {
    throw InvalidArgument(
        "ranks", room == 0 ? "none: the job has its largest size" : fmt::format("1 to {}", room),
        fmt::to_string(slots));
  }
  std::vector<Slot> wanted(slots);
  for (uint32_t i = 0; i < slots; ++i) wanted[i] = before + i;
  return std::make_unique<Grow>(*this, std::move(wanted));
}

std::unique_ptr<Recovery::Call> Recovery::recover(bool wait_for_replacements) {
  return std::make_unique<Recover>(*this, wait_for_replacements);
}

std::unique_ptr<Recovery::Call> Recovery::evict(Slot slot) {
  const View view = engine_.view();
  if (slot >= view.slots) {
    throw InvalidArgument("rank", fmt::format("a rank of {}", view.slots), fmt::to_string(slot));
  }
  const auto member = view.at(slot);
  return std::make_unique<Evict>(*this, member.value_or(Member{slot, 0}));
}

}  // namespace tokenyard::collectives
