/// Results that lie by expert, summed to one for each received row: the part of a combine that
/// needs no other rank. A row's results are added in the order of its picks, in fp32, each times
/// its weight if so asked, and rounded once to the type; combine then adds the ranks' rows.
///
/// A block's warps work in groups as a combine's do: the first warp of a group fetches the rows of
/// a sum into the group's ring, a lane a pick, and the others add them up.
#pragma once

#include <cstdint>

#include "device/bulk.hpp"
#include "device/kernel.hpp"
#include "device/wait.hpp"
#include "expert_parallel/throughput/ring.hpp"
#include "tokenyard/expert_parallel.hpp"

namespace tokenyard::expert_major {

struct ReduceParams {
  uint32_t rows, topk;  ///< received
  uint32_t row_bytes;
  ElementType type;
  const std::byte* y;          ///< [places, row_bytes] by expert
  const int32_t* slots;        ///< [rows, topk] place of each pick, or -1
  const float* weights;        ///< [rows, topk], or null: sums are not weighted
  std::byte* to;               ///< [rows, row_bytes]
  uint32_t groups;             ///< of a block
  throughput::StagePlan plan;  ///< of each group
  Patience patience;
};

inline constexpr uint32_t kReduceStagesMax = 64;  ///< of all groups

struct ReduceShared {
  Completion full[kReduceStagesMax];   ///< [groups][stages]
  Completion empty[kReduceStagesMax];  ///< arrived at by every summing warp of the group
};

inline constexpr uint32_t kReduceThreadsMax = 512;

DECLARE_KERNEL(reduce_rows_kernel, ReduceParams);

}  // namespace tokenyard::expert_major
