/// Copies received rows to each of their experts on this rank. Involves no other rank.
///
/// Every block finds the places of its own rows without asking another block (grouping_kernel.hpp):
/// it recounts the choices of all earlier rows, or of all later ones if those are fewer. That costs
/// a few microseconds of reading ids from cache, where the alternative is a barrier over the grid.
/// Meanwhile the movers clear the padding, so memory is busy from the start. Then the movers copy
/// rows, each loaded once and stored to all its places, and the other warps copy scales.
#pragma once

#include <cstdint>

#include "device/bulk.hpp"
#include "device/kernel.hpp"
#include "device/wait.hpp"
#include "expert_parallel/by_expert/grouping.hpp"
#include "expert_parallel/throughput/kernels/ring.hpp"

namespace tokenyard::expert_major {

struct ExpandParams {
  Grouping grouping;
  uint32_t rows;                      ///< received
  const std::byte* x;                 ///< [rows, row_bytes]
  const uint32_t* tokens_per_expert;  ///< [local experts]
  uint32_t movers;                    ///< warps per block that copy rows, each through its own ring
  throughput::StagePlan plan;         ///< per mover
  WaitContext wait_context;           ///< that of the dispatch that received the rows
};

inline constexpr uint32_t kExpandStagesMax = 64;  ///< over all movers

struct ExpandShared {
  Completion full[kExpandStagesMax];  ///< [movers][stages]
};

/// The block's shared memory after the kernel's Shared struct.
struct ExpandTail {
  uint32_t stages_bytes;
  GroupTail group;

  TOKENYARD_HOST_DEVICE static ExpandTail of(uint32_t warps, uint32_t local_experts,
                                             uint32_t movers, const throughput::StagePlan& plan) {
    return {.stages_bytes = movers * plan.stages * plan.stage_bytes,
            .group = {.placers = warps - movers, .ranks = 0, .local_experts = local_experts}};
  }
  TOKENYARD_HOST_DEVICE uint32_t bytes() const { return stages_bytes + group.bytes(); }
};

inline constexpr uint32_t kExpandThreadsMax = 512;

/// Barriers of this kernel; 0 is block::sync()'s.
enum class ExpandBarrier : uint32_t {
  placers = 1,  ///< warps that assign rows their places
};

TOKENYARD_DECLARE_KERNEL(expand_rows_kernel, ExpandParams);

}  // namespace tokenyard::expert_major
