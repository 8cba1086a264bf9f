/// Faults that kernels found in calls which they carried out all the same, as the host reports
/// them.
#pragma once

#include <mutex>

#include "device/device_memory.hpp"
#include "expert_parallel/low_latency/host/rank_masks.hpp"
#include "expert_parallel/low_latency/host/setup.hpp"
#include "expert_parallel/low_latency/kernels/dispatch.hpp"

namespace tokenyard::low_latency {

/// Any thread may ask what was found, whichever makes a call.
class Findings {
 public:
  explicit Findings(const Setup& setup)
      : setup_(setup),
        remote_error_(setup.accelerator, sizeof(RemoteError), DeviceMemory::Kind::shared) {}

  /// Returns where a dispatch notes an id that is no expert.
  RemoteError* remote_error() const { return remote_error_.as<RemoteError>(); }
  /// Throws the first finding that the host can see now and has not told yet.
  void raise(const RankMasks& masks);
  /// Tells of a difference of this rank again, should there be one.
  void forget(uint32_t rank);

 private:
  void raise_difference(const RankMasks& masks);
  void raise_mistake();

  const Setup& setup_;
  const DeviceMemory remote_error_;
  std::mutex mutex_;
  RankSet differences_raised_{};  ///< ranks that are masked for one
};

}  // namespace tokenyard::low_latency
