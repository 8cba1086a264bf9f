/// The spans of a trace by task and iteration.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "tokenyard/megakernel/trace.hpp"

namespace tokenyard::megakernel {

class SpanIndex {
 public:
  struct Place {
    uint64_t iteration;
    uint32_t span;
  };

  /// Keeps no reference to the trace.
  explicit SpanIndex(const Trace& trace) : of_task_(trace.tasks.size()) {
    for (uint32_t i = 0; i < trace.spans.size(); ++i)
      of_task_[trace.spans[i].task].push_back({trace.spans[i].iteration, i});
    for (auto& places : of_task_) std::ranges::sort(places, {}, &Place::iteration);
  }

  /// Returns the spans of a task, ordered by iteration; none for a task that never ran or does not
  /// exist.
  std::span<const Place> of(uint32_t task) const {
    if (task >= of_task_.size()) return {};
    return of_task_[task];
  }

  /// Returns the span of `task` in iteration `iteration - lag`.
  std::optional<uint32_t> find(uint32_t task, uint64_t iteration, uint32_t lag = 0) const {
    if (iteration < lag) return std::nullopt;
    const auto places = of(task);
    const auto found = std::ranges::lower_bound(places, iteration - lag, {}, &Place::iteration);
    if (found == places.end() || found->iteration != iteration - lag) return std::nullopt;
    return found->span;
  }

 private:
  std::vector<std::vector<Place>> of_task_;
};

}  // namespace tokenyard::megakernel
