/// Names the time of a public call on a profiler's timeline (NVTX, domain "tokenyard"). Where
/// nobody listens NVTX ends each call at a null pointer; where the toolkit's header was not found
/// when this was built, these calls are empty.
#pragma once

namespace tokenyard {

/// The time from its construction to its destruction, on this thread. Ranges of a thread nest.
class TraceRange {
 public:
  /// `name`: a literal, "Class.call". docs/metrics.md lists the names.
  explicit TraceRange(const char* name) noexcept;
  ~TraceRange();
  TraceRange(const TraceRange&) = delete;
  TraceRange& operator=(const TraceRange&) = delete;

  /// Returns whether this build has ranges.
  static bool available() noexcept;
};

}  // namespace tokenyard
