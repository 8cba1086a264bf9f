#include "expert_parallel/low_latency/host/call_streams.hpp"

#include <algorithm>

#include "device/await_stream.hpp"

namespace tokenyard::low_latency {

uint32_t CallStreams::timeout_of(const LowLatencyCall& call) {
  const uint32_t timeout = timeout_units(call.timeout.value_or(setup_.world.timeout()));
  longest_timeout_ =
      std::max(longest_timeout_, std::chrono::nanoseconds(uint64_t{timeout} * kTimeUnitNs));
  return timeout;
}

void CallStreams::await(Stream stream, const std::string& what) const {
  // A call ends after at most kTimesLate timeouts; the caller's other work gets one more.
  const auto timeout = (kTimesLate + 1) * std::max(longest_timeout_, setup_.world.timeout());
  await_stream(setup_.accelerator, setup_.world.rank(), stream, timeout, "LowLatency: " + what);
}

void CallStreams::await_last_call() const {
  if (last.in_use()) await(last.get(), "the end of its last call");
}

}  // namespace tokenyard::low_latency
