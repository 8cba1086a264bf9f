/// The shape of a launch, chosen from the user's options.
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
  uint32_t schedulers = 0;                   ///< additional blocks; 0: a static run
  uint32_t task_slots = 0, event_slots = 0;  ///< capacities; 0: as many as needed
  uint32_t network_blocks = 0;               ///< the last block, if some ranks are far: 1
  uint32_t blocks() const { return workers + schedulers + network_blocks; }
  /// Returns the warps per block. On hosts, loading lanes share one warp, since they do not delay
  /// each other there.
  uint32_t warps(const Accelerator& on) const {
    return compute_warps + (on.kind() == AcceleratorKind::gpu ? kLoadingWarps : 1);
  }
};

/// Returns the shape; options left at 0 are chosen for the device and the graph. `between_hosts`:
/// whether some ranks of the world are far. Throws InvalidArgument, which names an option that no
/// device can satisfy.
Shape shape_of(const MegakernelOptions& options, const Graph& graph, const Accelerator& accelerator,
               bool between_hosts = false);

}  // namespace tokenyard::megakernel
