/// How many calls there have been, as the device counts them.
#pragma once

#include "device/device_memory.hpp"
#include "expert_parallel/low_latency/host/call_streams.hpp"
#include "expert_parallel/low_latency/kernels/call.hpp"

namespace tokenyard::low_latency {

class Epochs {
 public:
  explicit Epochs(const Setup& setup)
      : accelerator_(setup.accelerator),
        memory_(accelerator_, sizeof(Workspace), DeviceMemory::Kind::device) {}

  /// Returns where kernels count.
  Workspace* workspace() const { return memory_.as<Workspace>(); }
  /// Waits for the calls so far and copies what they have left.
  Workspace read(const CallStreams& streams) const;
  /// Enqueues, after the calls so far. `workspace` must stay until the stream was awaited.
  void write(const Workspace& workspace, const CallStreams& streams) const;

  /// Returns the last call's number.
  static uint32_t last_of(const Workspace& workspace);
  /// Returns what a rank has drained that received as much as this one.
  static Drained drained_by(const Workspace& workspace);
  /// Returns a workspace that counts from `epoch` on.
  static Workspace counting_from(uint32_t epoch);

 private:
  Accelerator& accelerator_;
  const DeviceMemory memory_;
};

}  // namespace tokenyard::low_latency
