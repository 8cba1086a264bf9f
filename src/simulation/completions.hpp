/// The completions of bulk loads (mbarriers), with a check for every misuse.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "simulation/access_record.hpp"
#include "simulation/actor.hpp"

namespace tokenyard::simulation {

/// One Completion object in a block's shared memory.
///
///     phase n:   `arrivals` threads arrive, announcing bytes; loads bring bytes
///     ends when  all have arrived and the bytes announced have come; then phase n+1 begins
///
/// A thread that finds a phase ended knows all that the threads that arrived in it knew, and the
/// loaded bytes.
struct CompletionState {
  const void* address = nullptr;  ///< null: its block has ended
  uint32_t arrivals = 0;
  uint32_t agent = 0;    ///< actor of the loads announced to it
  Access initialised{};  ///< must have crossed the proxies before a load is announced to it
  Slot agent_slot = 0;
  Epoch first_epoch = 0;  ///< of the slot: phase n is epoch first_epoch + n

  uint32_t phase = 0;
  uint32_t missing = 0;            ///< arrivals
  int64_t bytes = 0;               ///< announced but not come; below 0 when they came first
  uint32_t loads = 0;              ///< under way
  Clock arriving, arriving_async;  ///< what those who arrived in this phase knew
  Clock ended, ended_async;        ///< of the phase before
  struct Waiter {
    Slot slot;
    uint32_t phase;  ///< that it found not ended
  };
  std::vector<Waiter> waiters;

  Epoch epoch() const { return first_epoch + phase; }
};

class Completions {
 public:
  /// Returns a description of the misuse; empty if there is none.
  std::string init(void* completion, CompletionState state);
  /// Null if no live completion lies there.
  CompletionState* find(const void* completion);
  std::string arrive(CompletionState& state, uint32_t bytes, ThreadState& me);
  /// Bytes of a load have come.
  void complete(CompletionState& state, uint32_t bytes);
  /// Whether the phase of this parity has ended; joins what it made known.
  bool done(CompletionState& state, uint32_t parity, ThreadState& me, std::string& wrong);
  /// Shared memory from `base` on has died. Calls `body(state)` for each completion in it.
  template <class Body>
  void forget(const void* base, size_t bytes, Body body) {
    const auto* const begin = static_cast<const std::byte*>(base);
    for (CompletionState& state : states_) {
      const auto* const at = static_cast<const std::byte*>(state.address);
      if (at == nullptr || at < begin || at >= begin + bytes) continue;
      body(state);
      state.address = nullptr;
    }
  }

 private:
  void end_if_complete(CompletionState& state);

  std::vector<CompletionState> states_;
};

}  // namespace tokenyard::simulation
