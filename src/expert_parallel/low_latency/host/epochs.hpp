/// The epochs of calls, as counted on the device.
#pragma once

#include "device/device_memory.hpp"
#include "expert_parallel/low_latency/host/call_streams.hpp"
#include "expert_parallel/low_latency/kernels/call.hpp"

namespace tokenyard::low_latency {

class Epochs {
 public:
  explicit Epochs(const Setup& setup)
      : accelerator_(setup.accelerator),
        ranks_(setup.world.size()),
        memory_(accelerator_, Workspace::bytes(ranks_), DeviceMemory::Kind::device) {}

  /// Returns the workspace in which kernels count.
  Workspace* workspace() const { return memory_.as<Workspace>(); }
  /// Waits for all calls so far and returns the workspace.
  Workspace read(const CallStreams& streams) const;
  /// Enqueues after all calls so far; words per rank become zeros. `workspace` must exist until the
  /// stream has been awaited.
  void write(const Workspace& workspace, const CallStreams& streams) const;

  /// Returns whether an epoch comes after another one. Epochs wrap, and those that are compared are
  /// less than 2^31 calls apart.
  static bool is_later(uint32_t epoch, uint32_t than) {
    return static_cast<int32_t>(epoch - than) > 0;
  }
  /// Returns the epoch of the last call.
  static uint32_t last_of(const Workspace& workspace);
  /// Returns the drained epochs of a rank that has received as much as this one.
  static Drained drained_by(const Workspace& workspace);
  /// Returns a workspace that counts from `epoch` on.
  static Workspace counting_from(uint32_t epoch);

 private:
  Accelerator& accelerator_;
  const uint32_t ranks_;
  const DeviceMemory memory_;
};

}  // namespace tokenyard::low_latency
