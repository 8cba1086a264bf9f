/// A dispatch whose rows are grouped by expert as they come: what it brings is what a dispatch and
/// expand_rows would, without a second pass.
///
///     source rank                                        destination rank, meanwhile
///     counts, as in a dispatch  ---- counts ------->     knows each expert's first row: clears the
///                                                        padding
///     ---- ids, weights, source tokens, told ------>     gives every received row its places
///     some blocks load rows and send them, in the        the other blocks spread rows to their
///     order of their tokens                              places: first this rank's own, straight
///     ---- rows, arrived (a word a row) ----------->     from where they lie, then those of other
///     go on as the others                                ranks as they arrive
///     ---- finished ------------------------------->     block 0 waits for all of them
///
/// Remote bytes are a dispatch's. A rank that receives a row stores it once for each of its experts
/// there, which takes longer than the links do: a multiprocessor of an H200 stores some 57 GB/s. So
/// the links, which eight multiprocessors fill, are busy while the others spread.
///
/// Rows of other ranks pass through the place that a dispatch would give them; rows of the own rank
/// never lie there. Nobody waits in a circle: who sends waits for nobody's rows.
#pragma once

#include <cstdint>

#include "device/kernel.hpp"
#include "expert_parallel/by_expert/grouping.hpp"
#include "expert_parallel/throughput/kernels/dispatch.hpp"

namespace tokenyard::expert_major {

struct ByExpertParams {
  throughput::DispatchParams dispatch;  ///< with shares in order; scales are received by rows
  uint32_t senders;                     ///< blocks that send first
  uint32_t alignment;
  bool clear_padding;
  std::byte* to;  ///< ExpertRowsLayout
  ExpertRowsLayout layout;
};

/// Received rows are spread in claims of so many.
inline constexpr uint32_t kRowsAClaim = 2;

/// The block's shared memory after the kernel's Shared struct.
struct ByExpertTail {
  throughput::DispatchTail dispatch;
  GroupTail group;

  HOST_DEVICE static ByExpertTail of(const throughput::DispatchParams& params, uint32_t warps) {
    return {.dispatch = throughput::DispatchTail::of(params, warps),
            .group = {.placers = warps - params.movers,
                      .ranks = params.call.ranks,
                      .local_experts = params.local_experts}};
  }
  HOST_DEVICE void lie_at(std::byte* base) {
    dispatch.base = base;
    group.base = base + group_at();
  }
  HOST_DEVICE uint32_t bytes() const { return group_at() + group.bytes(); }

 private:
  HOST_DEVICE uint32_t group_at() const { return (dispatch.bytes() + 127) / 128 * 128; }
};

DECLARE_KERNEL(dispatch_by_expert_kernel, ByExpertParams);

}  // namespace tokenyard::expert_major
