/// The shape of a launch, chosen from the options that its user gives.
#pragma once

#include <cstdint>

#include "device/accelerator.hpp"
#include "megakernel/kernels/run_params.hpp"
#include "tokenyard/megakernel/megakernel.hpp"

namespace tokenyard::megakernel {

/// The shape of a rank's launch.
struct Shape {
  uint32_t workers = 1, compute_warps = 1;
  StreamPlan streams = {};                   ///< for graphs that stream
  uint32_t schedulers = 0;                   ///< blocks besides; 0: a static run
  uint32_t task_slots = 0, event_slots = 0;  ///< of queues; 0: as many as are needed
  uint32_t blocks() const { return workers + schedulers; }
  /// Of a block. On a host the loading lanes share one warp: there they keep nobody waiting.
  uint32_t warps(const Accelerator& on) const {
    return compute_warps + (on.kind() == AcceleratorKind::gpu ? kLoadingWarps : 1);
  }
};

/// What is left open is chosen for the device and the graph. Throws InvalidArgument naming an
/// option that no device can do.
Shape shape_of(const MegakernelOptions& options, const Graph& graph,
               const Accelerator& accelerator);

}  // namespace tokenyard::megakernel
