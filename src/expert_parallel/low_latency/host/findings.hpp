/// Faults that kernels found in calls that they nevertheless completed, as reported by the host.
#pragma once

#include <mutex>
#include <set>

#include "device/device_memory.hpp"
#include "expert_parallel/low_latency/host/rank_masks.hpp"
#include "expert_parallel/low_latency/host/setup.hpp"
#include "expert_parallel/low_latency/kernels/dispatch.hpp"

namespace tokenyard::low_latency {

/// Any thread may query, whichever thread makes calls.
class Findings {
 public:
  explicit Findings(const Setup& setup)
      : setup_(setup),
        remote_error_(setup.accelerator, sizeof(RemoteError), DeviceMemory::Kind::shared) {}

  /// Returns the record in which a dispatch notes an id that is no expert.
  RemoteError* remote_error() const { return remote_error_.as<RemoteError>(); }
  /// Throws the first fault that the host can see and has not raised yet.
  void raise(const RankMasks& masks);
  /// Allows a difference of this rank to be raised again.
  void forget(uint32_t rank);

 private:
  void raise_difference(const RankMasks& masks);
  void raise_mistake();

  const Setup& setup_;
  const DeviceMemory remote_error_;
  std::mutex mutex_;
  std::set<uint32_t> differences_raised_;  ///< ranks whose difference has been raised
};

}  // namespace tokenyard::low_latency
