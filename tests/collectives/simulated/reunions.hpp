/// A group that is made and closed over and over beside the operations: all ranks make it, use it
/// once, close it, and make another of its name.
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

/// The reunions of one program. One is due with every finished operation of the world, so all ranks
/// hold the same number.
class Reunions {
 public:
  Reunions(Slot self, Engine& engine, uint32_t ranks) : engine_(engine) {
    identity_ = {.name = "reunion", .self = self};
    identity_.slots.resize(ranks);
    std::iota(identity_.slots.begin(), identity_.slots.end(), 0);
  }

  /// Returns whether anything has begun or ended.
  bool settle(Sequence due) {
    const Step before = step_;
    const uint64_t held = held_;
    while (advance(due)) continue;
    return step_ != before || held_ != held;
  }
  Sequence held() const { return held_; }

 private:
  enum class Step : uint8_t { apart, founding, operating };
  /// Longer than any job: a rank late for a reunion is late for earlier work too.
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

  /// An operation whose input differs between ranks.
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
