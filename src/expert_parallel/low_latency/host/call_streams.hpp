/// The streams of one object's calls, and how long calls may take.
#pragma once

#include <chrono>
#include <string>

#include "device/last_stream.hpp"
#include "expert_parallel/low_latency/host/setup.hpp"

namespace tokenyard::low_latency {

class CallStreams {
 public:
  explicit CallStreams(const Setup& setup) : last(setup.accelerator), setup_(setup) {}

  /// Returns a call's timeout in kTimeUnitNs, and remembers the longest for `await`.
  uint32_t timeout_of(const LowLatencyCall& call);
  /// Waits for all work enqueued on `stream`. Throws PeerTimeout.
  void await(Stream stream, const std::string& what) const;
  /// Waits for the last call, if one may be running.
  void await_last_call() const;

  LastStream last;

 private:
  const Setup& setup_;
  std::chrono::nanoseconds longest_timeout_{};  ///< of all calls so far, after rounding
};

}  // namespace tokenyard::low_latency
