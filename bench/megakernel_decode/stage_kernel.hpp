/// One stage of a megakernel's graph as a kernel of its own: each block runs the task that the
/// worker of its index would run then, the same body on the same packet. A stage begins to stream
/// while the one before it still runs (programmatic dependent launch).
#pragma once

#include "device/kernel.hpp"
#include "megakernel/kernels/run_params.hpp"

namespace tokenyard::bench {

inline constexpr uint32_t kStagePacketBytes = 512;

struct StageParams {
  megakernel::RunParams run;
  const std::byte* packets;  ///< [blocks][kStagePacketBytes] of the stage
};

DECLARE_KERNEL(stage_kernel, StageParams);

}  // namespace tokenyard::bench
