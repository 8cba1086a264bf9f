/// A group that comes and goes beside the operations: all ranks make it, use it once and close it,
/// and make another one of its name.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <string>

#include "collectives/engine/engine.hpp"
#include "collectives/simulated/checkers.hpp"

namespace tokenyard::collectives::simulated {

/// One program's. A reunion is due with every operation of the world that is done, so all ranks
/// hold as many.
class Reunions {
 public:
  Reunions(Slot self, Engine& engine, uint32_t ranks) : engine_(engine) {
    identity_ = {.name = "reunion", .self = self};
    identity_.slots.resize(ranks);
    std::iota(identity_.slots.begin(), identity_.slots.end(), 0);
  }

  /// True if something has begun, or ended.
  bool settle(Sequence due) {
    const Step before = step_;
    const uint64_t held = held_;
    while (advance(due)) continue;
    return step_ != before || held_ != held;
  }
  Sequence held() const { return held_; }

 private:
  enum class Step : uint8_t { apart, founding, operating };
  /// Longer than any job: who is late for a reunion is late for what comes before it, too.
  static constexpr std::chrono::hours kTimeout{1000};

  bool advance(Sequence due) {
    switch (step_) {
      case Step::apart:
        if (held_ >= due) return false;
        founding_ = engine_.found_group(identity_, kTimeout);
        step_ = Step::founding;
        return true;
      case Step::founding: {
        if (founding_->barrier && !founding_->barrier->done()) return false;
        engine_.end_founding(founding_);
        const bool failed = founding_->barrier && founding_->barrier->error();
        step_ = failed ? Step::apart : Step::operating;
        if (failed) return false;
        numbers_[0] = founding_->id;
        numbers_[1] = ~founding_->id;
        operation_ = engine_.start(founding_->id, greatest(), kTimeout);
        return true;
      }
      case Step::operating:
        if (!operation_->done()) return false;
        expect(
            operation_->error() || (numbers_[0] == founding_->id && numbers_[1] == ~founding_->id),
            "reunions: slot {} has met ranks of another group of the name",
            identity_.slots[identity_.self]);
        engine_.close_group(founding_->id);
        ++held_;
        step_ = Step::apart;
        return true;
    }
    return false;
  }

  /// What differs from rank to rank shows in it.
  Call greatest() {
    const Array array = {numbers_, 2, DataType::uint64};
    return {.signature = {.kind = OperationKind::all_reduce,
                          .type = array.type,
                          .op = ReduceOp::max,
                          .elements = array.elements},
            .out = {array},
            .bytes = array.bytes()};
  }

  Engine& engine_;
  GroupIdentity identity_;
  Step step_ = Step::apart;
  uint64_t held_ = 0;
  std::shared_ptr<Founding> founding_;
  std::shared_ptr<Operation> operation_;
  uint64_t numbers_[2] = {};
};

}  // namespace tokenyard::collectives::simulated
