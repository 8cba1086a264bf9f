/// Sums results grouped by expert to one per received row, in a kernel of its own: the part of a
/// combine that involves no other rank, on as many multiprocessors as can be spared.
#pragma once

#include <cstdint>

#include "device/bulk.hpp"
#include "device/kernel.hpp"
#include "device/wait.hpp"
#include "expert_parallel/throughput/kernels/results.hpp"

namespace tokenyard::expert_major {

struct ReduceParams {
  throughput::ResultsParams results;
  uint32_t rows;  ///< received
  WaitContext wait_context;
};

inline constexpr uint32_t kReduceStagesMax = 64;  ///< over all groups

struct ReduceShared {
  Completion full[kReduceStagesMax];   ///< [groups][stages]
  Completion empty[kReduceStagesMax];  ///< every summing lane of the group arrives
};

inline constexpr uint32_t kReduceThreadsMax = 512;

TOKENYARD_DECLARE_KERNEL(reduce_rows_kernel, ReduceParams);

}  // namespace tokenyard::expert_major
