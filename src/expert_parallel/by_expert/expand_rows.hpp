/// Received rows, copied to each of their experts on this rank. No other rank takes part.
///
/// Every block finds the places of its own rows without asking another one (grouping_kernel.hpp):
/// it counts anew the picks of the rows before its own, or of all others, if those are fewer. That
/// is a few microseconds of reading ids from cache, against a barrier of the whole grid; and while
/// most warps do so, the movers clear the padding, so memory is at work from the start. Then the
/// movers copy rows, each loaded once and stored to all its places, and the others what lies beside
/// them.
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
  uint32_t movers;             ///< warps of a block that copy rows, each through a ring of its own
  throughput::StagePlan plan;  ///< of each mover
  WaitContext wait_context;    ///< of the dispatch that the rows came with
};

inline constexpr uint32_t kExpandStagesMax = 64;  ///< of all movers

struct ExpandShared {
  Completion full[kExpandStagesMax];  ///< [movers][stages]
};

/// The block's shared memory after the kernel's Shared struct.
struct ExpandTail {
  uint32_t stages_bytes;
  GroupTail group;

  HOST_DEVICE static ExpandTail of(uint32_t warps, uint32_t local_experts, uint32_t movers,
                                   const throughput::StagePlan& plan) {
    return {.stages_bytes = movers * plan.stages * plan.stage_bytes,
            .group = {.placers = warps - movers, .ranks = 0, .local_experts = local_experts}};
  }
  HOST_DEVICE uint32_t bytes() const { return stages_bytes + group.bytes(); }
};

inline constexpr uint32_t kExpandThreadsMax = 512;

/// Barriers of this kernel; 0 is block::sync()'s.
enum class ExpandBarrier : uint32_t {
  placers = 1,  ///< among the warps that give rows their places
};

DECLARE_KERNEL(expand_rows_kernel, ExpandParams);

}  // namespace tokenyard::expert_major
