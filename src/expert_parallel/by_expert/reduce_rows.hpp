/// Results that lie by expert, summed to one for each received row by a kernel of its own: the part
/// of a combine that needs no other rank, on as many multiprocessors as there are to spare.
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

inline constexpr uint32_t kReduceStagesMax = 64;  ///< of all groups

struct ReduceShared {
  Completion full[kReduceStagesMax];   ///< [groups][stages]
  Completion empty[kReduceStagesMax];  ///< arrived at by every summing warp of the group
};

inline constexpr uint32_t kReduceThreadsMax = 512;

DECLARE_KERNEL(reduce_rows_kernel, ReduceParams);

}  // namespace tokenyard::expert_major
