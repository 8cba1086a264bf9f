/// The collective calls of a session that have returned on this host, by number. The device counts
/// calls, too, but neither their names nor those that an interrupt of the host has ended.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>

#include "expert_parallel/throughput/kernels/call.hpp"

namespace tokenyard::throughput {

class CallLog {
 public:
  /// Adds a call that has returned: one of kernels, or a change of the expert map.
  void returned(CallKind kind) {
    add(kind);
    ++kernels_;
  }
  void map_was_set() { add(std::nullopt); }

  /// Returns how many calls, from the first on, were finished if the device has finished `kernels`
  /// calls of kernels.
  uint64_t finished(uint64_t kernels) const {
    uint64_t unfinished = kernels_ - std::min(kernels, kernels_), calls = calls_;
    while (unfinished > 0 && calls_ - calls < kKept && calls > 0) {
      if (last_[--calls % kKept]) --unfinished;
    }
    return calls - std::min(unfinished, calls);
  }
  uint64_t maps_set() const { return calls_ - kernels_; }
  uint64_t kernels() const { return kernels_; }
  /// Returns the kind of the last call of kernels; nullopt if there was none lately.
  std::optional<CallKind> last_kernel() const {
    for (uint64_t call = calls_; call > 0 && calls_ - call < kKept; --call)
      if (const auto kind = last_[(call - 1) % kKept]) return kind;
    return std::nullopt;
  }
  /// Returns the name of a call, the first of which is 1: of one of the last kKept.
  const char* name_of(uint64_t call) const {
    if (call == 0 || call > calls_ || calls_ - call >= kKept) return "a call";
    const std::optional<CallKind> kind = last_[(call - 1) % kKept];
    if (!kind) return "set_expert_map";
    switch (*kind) {
      case CallKind::dispatch:
      case CallKind::dispatch_again:
        return "dispatch";
      case CallKind::combine:
        return "combine";
      case CallKind::dispatch_by_expert:
        return "dispatch_by_expert";
    }
    return "a call";
  }

 private:
  static constexpr uint64_t kKept = 256;

  void add(std::optional<CallKind> kind) { last_[calls_++ % kKept] = kind; }

  uint64_t calls_ = 0, kernels_ = 0;
  std::array<std::optional<CallKind>, kKept> last_;  ///< by number; null: a map was set
};

}  // namespace tokenyard::throughput
