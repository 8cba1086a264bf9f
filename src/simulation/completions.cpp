#include "simulation/completions.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace tokenyard::simulation {
namespace {

/// An mbarrier's transaction count and its arrival count have 20 bits each.
constexpr int64_t kBytesMax = (1 << 20) - 1;

/// A Completion's eight bytes hold this mark and the index of its state. The mark makes it unlikely
/// that uninitialised memory looks like a Completion.
constexpr uint64_t kMark = 0x6d62'6172'0000'0000;

}  // namespace

std::string Completions::init(void* completion, CompletionState state) {
  if (state.arrivals == 0 || state.arrivals > kBytesMax)
    return fmt::format("Completion::init with {} arrivals: pass 1 to {}", state.arrivals,
                       kBytesMax);
  const bool again = find(completion) != nullptr;
  state.address = completion;
  state.missing = state.arrivals;
  const uint64_t bits = kMark | states_.size();
  states_.push_back(std::move(state));
  std::memcpy(completion, &bits, sizeof bits);
  return again ? "Completion::init of a completion that is in use" : "";
}

CompletionState* Completions::find(const void* completion) {
  uint64_t bits = 0;
  std::memcpy(&bits, completion, sizeof bits);
  const uint64_t index = bits & 0xffff'ffff;
  if ((bits & ~uint64_t{0xffff'ffff}) != kMark || index >= states_.size()) return nullptr;
  return states_[index].address == completion ? &states_[index] : nullptr;
}

std::string Completions::arrive(CompletionState& state, uint32_t bytes, ThreadState& me) {
  if (state.missing == 0)
    return fmt::format("more than {} arrivals in phase {} of a completion", state.arrivals,
                       state.phase);
  if (state.bytes + bytes > kBytesMax)
    return fmt::format("{} bytes expected in one phase of a completion: expect at most {}",
                       state.bytes + bytes, kBytesMax);
  me.known.raise(me.slot, me.epoch);
  ++me.epoch;
  state.arriving.join(me.known);
  state.arriving_async.join(me.async);
  state.bytes += bytes;
  --state.missing;
  end_if_complete(state);
  return "";
}

void Completions::complete(CompletionState& state, uint32_t bytes) {
  --state.loads;
  state.bytes -= bytes;
  end_if_complete(state);
}

void Completions::end_if_complete(CompletionState& state) {
  if (state.missing != 0 || state.bytes != 0) return;
  state.ended = std::move(state.arriving);
  state.ended_async = std::move(state.arriving_async);
  state.arriving = state.arriving_async = Clock();
  state.ended.raise(state.agent_slot, state.epoch());
  state.ended_async.raise(state.agent_slot, state.epoch());
  ++state.phase;
  state.missing = state.arrivals;
}

bool Completions::done(CompletionState& state, uint32_t parity, ThreadState& me,
                       std::string& wrong) {
  auto waiter = std::find_if(state.waiters.begin(), state.waiters.end(),
                             [&](const auto& entry) { return entry.slot == me.slot; });
  const bool ended = (state.phase & 1) != (parity & 1);
  if (waiter != state.waiters.end() && (waiter->phase & 1) == (parity & 1) &&
      state.phase - waiter->phase > 1)
    wrong = fmt::format("a wait for phase {} of a completion that is two phases ahead, in phase {}",
                        waiter->phase, state.phase);
  if (!ended) {
    if (waiter == state.waiters.end()) {
      state.waiters.push_back({me.slot, state.phase});
    } else if (wrong.empty()) {
      waiter->phase = state.phase;
    }
    return false;
  }
  if (waiter != state.waiters.end()) state.waiters.erase(waiter);
  me.known.join(state.ended);
  me.async.join(state.ended_async);
  return true;
}

}  // namespace tokenyard::simulation
