/// Observations of an object that may be read while calls run: sums over calls, and the moments of
/// traced calls.
#pragma once

#include <optional>
#include <vector>

#include "device/device_memory.hpp"
#include "expert_parallel/throughput/host/setup.hpp"
#include "expert_parallel/throughput/kernels/statistics.hpp"

namespace tokenyard::throughput {

class Observation {
 public:
  /// `blocks_max`: most blocks of any rank's calls.
  Observation(const Setup& setup, uint32_t blocks_max);

  const Statistics& statistics() const { return statistics_; }
  /// Returns [blocks_max, kMoments] for calls to record their moments, or null if calls are not
  /// traced.
  uint64_t* moments() const { return traces_ ? moments_->as<uint64_t>() : nullptr; }

  ExpertParallel::Load load() const;
  void trace_calls(bool on);
  std::vector<ExpertParallel::Moment> last_trace() const;

 private:
  Accelerator& accelerator_;
  const uint32_t blocks_max_;
  Statistics statistics_;
  const DeviceMemory totals_, shown_;      ///< memory of statistics_
  std::optional<DeviceMemory> moments_{};  ///< allocated with the first traced call
  bool traces_ = false;
};

}  // namespace tokenyard::throughput
