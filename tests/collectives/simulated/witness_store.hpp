/// The store that holds the witness's register, as bad as a real one may be: slow, reached by
/// several members at once, with answers that get lost after their effect, and with reads that lag
/// behind what another member has read already, like those of a network file system.
#pragma once

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "membership/view.hpp"
#include "membership/witness_question.hpp"
#include "simulation/random.hpp"

namespace tokenyard::collectives::simulated {

using membership::Instant;

class WitnessStore {
 public:
  using Value = membership::WitnessQuestion::Bytes;

  struct Faults {
    uint32_t lost_of_1024 = 0;  ///< requests, or their answers
    Instant lag_most{};         ///< of reads
  };

  /// Draws from its own generator, so that other draws are the same with and without faults.
  explicit WitnessStore(uint64_t seed) : random(seed) {}

  void draw_faults(Instant ballot) {
    if (random.chance(500)) faults.lost_of_1024 = random.between(32, 300);
    if (random.chance(500)) faults.lag_most = random.chance(512) ? ballot : ballot * 8;
  }
  std::optional<Value> read(Instant now) {
    const Instant seen = now - some(faults.lag_most);
    std::optional<Value> value;
    for (const auto& [since, written] : history_) {
      if (since <= seen) value = written;
    }
    return value;
  }
  /// Compares with what it reads first, which may be old; writes only over the newest value.
  Value compare_and_set(const std::optional<Value>& expected, const Value& desired, Instant now) {
    const std::optional<Value> before = read(now);
    if (before != expected) return before.value_or(Value{});
    const std::optional<Value> newest =
        history_.empty() ? std::nullopt : std::optional(history_.back().second);
    if (newest != expected) {
      ++races;
      return newest.value_or(Value{});
    }
    history_.emplace_back(now, desired);
    return desired;
  }
  bool loses() { return random.chance(faults.lost_of_1024); }
  Instant some(Instant most) {
    return Instant(static_cast<int64_t>(random.next() % static_cast<uint64_t>(most.count() + 1)));
  }

  Faults faults;
  simulation::Random random;
  uint64_t races = 0;  ///< writes that another member's write overtook

 private:
  std::vector<std::pair<Instant, Value>> history_;
};

}  // namespace tokenyard::collectives::simulated
