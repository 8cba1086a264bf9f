/// The streams of one object's calls, and how long these may take.
#pragma once

#include <chrono>
#include <string>

#include "expert_parallel/common/last_stream.hpp"
#include "expert_parallel/low_latency/host/setup.hpp"

namespace tokenyard::low_latency {

class CallStreams {
 public:
  explicit CallStreams(const Setup& setup) : last(setup.accelerator), setup_(setup) {}

  /// Returns a call's timeout in kTimeUnitNs, and keeps the longest one for `await`.
  uint32_t timeout_of(const LowLatencyCall& call);
  /// Waits until what was enqueued on `stream` has ended; throws PeerTimeout.
  void await(Stream stream, const std::string& what) const;
  /// Waits for the last call, if one may be under way.
  void await_last_call() const;

  LastStream last;

 private:
  const Setup& setup_;
  std::chrono::nanoseconds longest_timeout_{};  ///< of a call so far, as its kernel took it
};

}  // namespace tokenyard::low_latency
