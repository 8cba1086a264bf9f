/// One stage of a megakernel's graph as a kernel of its own: each block runs the task that the
/// worker of its index would run, with the same body and packet. A stage starts to stream while the
/// previous one still runs (programmatic dependent launch).
#pragma once

#include "device/kernel.hpp"
#include "megakernel/kernels/run_params.hpp"

namespace tokenyard::bench {

inline constexpr uint32_t kStagePacketBytes = 512;

struct StageParams {
  megakernel::RunParams run;
  const std::byte* packets;  ///< [blocks][kStagePacketBytes], of this stage
};

TOKENYARD_DECLARE_KERNEL(stage_kernel, StageParams);

}  // namespace tokenyard::bench
