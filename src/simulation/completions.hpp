/// The completions of bulk loads (mbarriers), with checks for misuse. A phase's loads are one epoch
/// of the Completion's agent (clock.hpp), so a thread that sees the phase end knows them all.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "simulation/access_record.hpp"
#include "simulation/actor.hpp"

namespace tokenyard::simulation {

/// One Completion object in a block's shared memory.
///
///     phase n:   `arrivals` threads arrive and announce bytes; loads deliver bytes
///     ends when  all have arrived and all announced bytes are loaded; then phase n+1 begins
///
/// A thread that finds a phase ended acquires the knowledge of all threads that arrived in it, and
/// the loaded bytes.
struct CompletionState {
  const void* address = nullptr;  ///< null: its block has ended
  uint32_t arrivals = 0;
  uint32_t agent = 0;    ///< actor of its loads
  Access initialised{};  ///< its init, which a proxy fence must follow before the first load
  Slot agent_slot = 0;
  Epoch first_epoch = 0;  ///< in agent_slot; phase n is epoch first_epoch + n

  uint32_t phase = 0;
  uint32_t missing = 0;            ///< arrivals missing in this phase
  int64_t bytes = 0;               ///< announced but not loaded; negative if loaded first
  uint32_t loads = 0;              ///< in flight
  Clock arriving, arriving_async;  ///< knowledge of the threads that arrived in this phase
  Clock ended, ended_async;        ///< the same for the previous phase
  struct Waiter {
    Slot slot;
    uint32_t phase;  ///< phase that it last found not ended
  };
  std::vector<Waiter> waiters;

  Epoch epoch() const { return first_epoch + phase; }
};

class Completions {
 public:
  /// `init` and `arrive` return a description of the misuse; empty if there is none.
  std::string init(void* completion, CompletionState state);
  /// Returns the live completion at this address; null if there is none.
  CompletionState* find(const void* completion);
  std::string arrive(CompletionState& state, uint32_t bytes, ThreadState& me);
  /// Counts a load of `bytes` as complete.
  void complete(CompletionState& state, uint32_t bytes);
  /// Returns whether the phase of this parity has ended. If so, `me` acquires its knowledge.
  bool done(CompletionState& state, uint32_t parity, ThreadState& me, std::string& wrong);
  /// Forgets the completions in these bytes, after `body(state)` for each: the memory is freed.
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
