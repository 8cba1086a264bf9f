/// Communication between the processes of one test, besides the tested one, so that no test relies
/// on guessed durations.
#pragma once

#include <fmt/format.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <new>
#include <thread>

#include "base/mapping.hpp"
#include "fabric/promise.hpp"

namespace tokenyard::testing {

/// Signs that processes show, each at most once.
enum class Sign : uint32_t {
  started,       ///< about to join the others
  waiting,       ///< about to wait for a rank that does not answer
  rebuilt,       ///< at work in the smaller world
  sleeper_done,  ///< has woken and finished its attempts
};
inline constexpr uint32_t kSigns = 4;

/// Counters in memory shared with all processes that are forked during its lifetime.
class Board {
 public:
  void show(Sign sign) { ++of(sign); }
  uint32_t shown(Sign sign) const { return of(sign); }

  /// Waits until `times` processes have shown the sign. Throws after a minute.
  void await(Sign sign, uint32_t times) const {
    const auto until = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (shown(sign) < times) {
      promise(std::chrono::steady_clock::now() < until,
              fmt::format("{} of {} processes have shown sign {}", shown(sign), times,
                          static_cast<uint32_t>(sign)));
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

 private:
  using Counts = std::array<std::atomic<uint32_t>, kSigns>;
  static_assert(std::atomic<uint32_t>::is_always_lock_free, "shared between processes");

  std::atomic<uint32_t>& of(Sign sign) const { return (*counts_)[static_cast<uint32_t>(sign)]; }

  Mapping memory_ = Mapping::with_children(sizeof(Counts));
  Counts* counts_ = new (memory_.base()) Counts{};
};

}  // namespace tokenyard::testing
