/// A dispatch that groups rows by expert as they arrive: same result as a dispatch followed by
/// expand_rows, without a second pass.
///
///     source rank                                        destination rank, meanwhile
///     counts, as in a dispatch  ---- counts -------->    knows each expert's first row; clears
///                                                        the padding
///     ---- ids, weights, source tokens, published -->    assigns every received row its places
///     some blocks load rows and send them, in the        the other blocks spread rows to their
///     order of their tokens                              places: first this rank's own, directly
///     ---- rows, arrived (one word per row) -------->    from where they are, then the rows of
///     these blocks then spread rows, too                 other ranks as they arrive
///     ---- finished -------------------------------->    block 0 waits for all blocks of all
///                                                        ranks
///
/// `published` proves that the metadata of a source block has arrived, `arrived` that one row has;
/// Workspace::placed, that all blocks of this rank have assigned their places.
///
/// Remote bytes equal those of a dispatch. A rank stores a received row once per local expert of
/// the row, which takes longer than the transfer: a multiprocessor of an H200 stores some 57 GB/s.
/// So sending, for which eight multiprocessors fill the links, overlaps with spreading by the
/// others.
///
/// Rows of other ranks pass through the places that a dispatch would give them; this rank's own
/// rows do not. The waits have no cycle: a block that sends waits for no rows.
#pragma once

#include <cstdint>

#include "device/kernel.hpp"
#include "expert_parallel/by_expert/grouping.hpp"
#include "expert_parallel/throughput/kernels/dispatch.hpp"

namespace tokenyard::expert_major {

struct ByExpertParams {
  throughput::DispatchParams dispatch;  ///< shares in order; scales are received in row order
  uint32_t senders;                     ///< blocks that send before they spread
  uint32_t alignment;
  bool clear_padding;
  std::byte* to;  ///< ExpertRowsLayout
  ExpertRowsLayout layout;
};

/// Received rows per claim.
inline constexpr uint32_t kRowsAClaim = 2;

/// The block's shared memory after the kernel's Shared struct.
struct ByExpertTail {
  throughput::DispatchTail dispatch;
  GroupTail group;

  TOKENYARD_HOST_DEVICE static ByExpertTail of(const throughput::DispatchParams& params,
                                               uint32_t warps) {
    return {.dispatch = throughput::DispatchTail::of(params, warps),
            .group = {.placers = warps - params.movers,
                      .ranks = params.call.ranks,
                      .local_experts = params.local_experts}};
  }
  TOKENYARD_HOST_DEVICE void lie_at(std::byte* base) {
    dispatch.base = base;
    group.base = base + group_at();
  }
  TOKENYARD_HOST_DEVICE uint32_t bytes() const { return group_at() + group.bytes(); }

 private:
  TOKENYARD_HOST_DEVICE uint32_t group_at() const { return (dispatch.bytes() + 127) / 128 * 128; }
};

TOKENYARD_DECLARE_KERNEL(dispatch_by_expert_kernel, ByExpertParams);

}  // namespace tokenyard::expert_major
