/// Shapes and sizes of one object's calls, from its options and the device's capacity.
#pragma once

#include <algorithm>
#include <cstdint>

#include "device/accelerator.hpp"
#include "expert_parallel/low_latency/kernels/combine.hpp"
#include "expert_parallel/low_latency/kernels/dispatch.hpp"
#include "tokenyard/low_latency.hpp"

namespace tokenyard::low_latency {

/// The blocks of a kernel, and how many of them send.
struct Split {
  uint32_t blocks, send_blocks;
};

/// Roles of a dispatch's sending blocks.
struct SendRoles {
  uint32_t data_blocks;                    ///< the first ones, which move tokens
  uint32_t publish_first, publish_blocks;  ///< blocks that publish ids
  bool apart() const { return publish_first >= data_blocks; }
};

inline constexpr uint32_t kBlocksMin = 2;  ///< per call: one sends, one receives

/// Returns the most blocks of a call: one per multiprocessor.
inline uint32_t blocks_there_are(uint32_t multiprocessors) {
  return std::min(multiprocessors, kBlocksMax);
}

struct Plan {
  AcceleratorKind kind;
  uint32_t multiprocessors;
  uint32_t shared_bytes;  ///< available to a block
  uint32_t blocks_max;    ///< of a call that does not say
  uint32_t dispatch_warps_max, combine_warps, logfmt_warps;
  uint32_t polls_per_check;
  uint32_t words_summed;           ///< see DispatchParams::divide
  uint32_t data_blocks_max;        ///< in a dispatch that also receives
  uint32_t data_blocks_alone_max;  ///< in a send-only dispatch
  uint32_t publish_blocks_max;     ///< blocks that publish ids beside data_blocks_max data blocks
  uint32_t sum_blocks_alone_max;   ///< blocks that sum, in a send-only combine
  uint32_t sum_blocks_that_fill;   ///< summing blocks that fill the links among more than two ranks
  uint32_t others;                 ///< ranks other than this one
  uint32_t tokens_max, topk;
  uint32_t local_experts;             ///< on the ranks that hold most
  bool one_grid;                      ///< see Capacity
  Split dispatch_most, combine_most;  ///< most sending blocks, and blocks in all, that find work
  uint32_t receivers_min;             ///< dispatch_blocks_min of a receive-only part

  /// Return the split of `blocks`: no more than have something to do. A part alone takes no more
  /// than it needs; a receive-only dispatch is to be given receivers_alone() blocks. `tokens`: this
  /// rank's in this call.
  Split dispatch(Part part, uint32_t blocks, uint32_t tokens) const;
  Split combine(Part part, uint32_t blocks, uint32_t tokens, bool logfmt) const;
  SendRoles send_roles(Split split, uint32_t tokens) const;
  /// Returns the shared memory of a dispatch's block: the fewer blocks receive, the more rows each
  /// has.
  uint64_t dispatch_shared_bytes(Part part, uint32_t blocks) const;
  /// Returns the fewest blocks of a dispatch that have enough shared memory; 0 if no number does.
  uint32_t dispatch_blocks_min(Part part) const;
  /// Returns how many of `blocks`, whose shared memory suffices, a receive-only dispatch should
  /// have; that of the result suffices too. `units`: units per row.
  uint32_t receivers_alone(uint32_t blocks, uint32_t units) const;
  /// Returns the tokens that shape a call: tokens_max if all ranks must launch the same shape.
  uint32_t shaping(uint32_t tokens) const { return one_grid ? tokens_max : tokens; }
  /// Returns the data blocks of a send-only dispatch, one per token: more would find no token, or
  /// only wait for the link.
  uint32_t data_blocks_alone(uint32_t tokens) const {
    return std::min(shaping(tokens), data_blocks_alone_max);
  }

  /// Returns the warps per block: no more than have something to do, since with few tokens
  /// instruction issue bounds a block.
  uint32_t dispatch_warps(const DispatchParams& params, Split split) const;
};

Plan make_plan(const LowLatencyOptions& options, uint32_t ranks, AcceleratorKind kind,
               const Capacity& capacity);

WindowLayout window_layout(const LowLatencyOptions& options, uint32_t ranks);

inline RowLayout row_layout(const LowLatencyOptions& options, LowLatencyRows rows) {
  return {options.hidden, static_cast<RowFormat>(rows)};
}

/// Returns `timeout` in units of kTimeUnitNs: at least one, and so few that kTimesLate + 1
/// times the result fits 32 bits.
uint32_t timeout_units(std::chrono::nanoseconds timeout);

}  // namespace tokenyard::low_latency
