/// Shapes and sizes of one object's calls, from its options and from what the device has.
#pragma once

#include <algorithm>
#include <cstdint>

#include "device/accelerator.hpp"
#include "expert_parallel/low_latency/kernels/combine.hpp"
#include "expert_parallel/low_latency/kernels/dispatch.hpp"
#include "tokenyard/low_latency.hpp"

namespace tokenyard::low_latency {

/// How many blocks a kernel has, and how many of them send.
struct Split {
  uint32_t blocks, send_blocks;
};

/// Of a dispatch's sending blocks.
struct SendRoles {
  uint32_t data_blocks;                    ///< the first ones move tokens
  uint32_t publish_first, publish_blocks;  ///< these tell ids
  bool apart() const { return publish_first >= data_blocks; }
};

inline constexpr uint32_t kBlocksMin = 2;  ///< of a call: one sends, one receives

/// The most blocks of a call: each has a multiprocessor.
inline uint32_t blocks_there_are(uint32_t multiprocessors) {
  return std::min(multiprocessors, kBlocksMax);
}

struct Plan {
  AcceleratorKind kind;
  uint32_t multiprocessors;
  uint32_t shared_bytes;  ///< that a block can have
  uint32_t blocks_max;    ///< of a call that does not say
  uint32_t dispatch_warps_max, combine_warps, logfmt_warps;
  uint32_t polls_per_check;
  uint32_t words_summed;           ///< see DispatchParams::divide
  uint32_t data_blocks_max;        ///< of a dispatch that also receives
  uint32_t data_blocks_alone_max;  ///< of a dispatch that only sends
  uint32_t publish_blocks_max;     ///< that tell ids beside as many as those
  uint32_t sum_blocks_alone_max;   ///< that sum, of a combine that only sends
  uint32_t sum_blocks_that_fill;   ///< the links among more than two ranks, if they sum
  uint32_t others;                 ///< ranks
  uint32_t tokens_max, topk;
  uint32_t local_experts;             ///< of the ranks that hold most
  bool one_grid;                      ///< see Capacity
  Split dispatch_most, combine_most;  ///< senders, and blocks that only receive, that find work
  uint32_t receivers_min;             ///< dispatch_blocks_min of a part that only receives

  /// Of `blocks`, as many as have something to do; of a part alone, as many as it takes, where
  /// those of a dispatch that only receives are receivers_alone's.
  /// `tokens`: of this rank in this call.
  Split dispatch(Part part, uint32_t blocks, uint32_t tokens) const;
  Split combine(Part part, uint32_t blocks, uint32_t tokens, bool logfmt) const;
  SendRoles send_roles(Split split, uint32_t tokens) const;
  /// Shared memory that a block of a dispatch takes. The fewer receive, the more rows each.
  uint64_t dispatch_shared_bytes(Part part, uint32_t blocks) const;
  /// The fewest blocks of a dispatch that have enough of it, or 0: all there are have not.
  uint32_t dispatch_blocks_min(Part part) const;
  /// Of `blocks`, which have the shared memory, as many as a dispatch that only receives is to
  /// have; they have it as well. A row has so many units.
  uint32_t receivers_alone(uint32_t blocks, uint32_t units) const;
  /// By which a call is shaped: where all ranks must give the same shape, those that there may be.
  uint32_t shaping(uint32_t tokens) const { return one_grid ? tokens_max : tokens; }
  /// Of a dispatch that only sends, a token each: more would find none, or only wait for the link.
  uint32_t data_blocks_alone(uint32_t tokens) const {
    return std::min(shaping(tokens), data_blocks_alone_max);
  }

  /// Of each block: no more than have something to do, since a block of few tokens takes about as
  /// long as its warps take to issue their instructions.
  uint32_t dispatch_warps(const DispatchParams& params, Split split) const;
};

Plan make_plan(const LowLatencyOptions& options, uint32_t ranks, AcceleratorKind kind,
               const Capacity& capacity);

WindowLayout window_layout(const LowLatencyOptions& options, uint32_t ranks);

inline RowLayout row_layout(const LowLatencyOptions& options, LowLatencyRows rows) {
  return {options.hidden, static_cast<RowFormat>(rows)};
}

/// At least one unit, at most what lets kTimesLate of them fit.
uint32_t timeout_units(std::chrono::nanoseconds timeout);

}  // namespace tokenyard::low_latency
