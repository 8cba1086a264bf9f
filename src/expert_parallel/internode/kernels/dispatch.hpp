/// Dispatch across hosts, in one launch. See across_hosts.hpp for the roles.
///
///     source rank                            its rail peer on a host       a rank of that host
///     counts its tokens
///     ==== greeting (a put per host) ======> passes it on -- load/store -> counts of all sources:
///     builds a slot per token,                                             first rows of each
///     a copy to each host's stage                                          source
///     ==== slots, then their number =======> claims slots as they come
///     its own host's rows ------------------ load/store -----------------> final rows
///                                            rows and metadata ----------> final rows
///     <=== credits ========================= once read
///     all movers of a host have finished --- load/store -----------------> the call ends
///
/// Slots may travel before any count is known, but nothing is stored into a result before: the slot
/// tells the token's number among its source's rows for a rank, and the counts of earlier sources
/// tell where those begin. So results are ordered by source rank, then source token, whatever the
/// number of blocks and the timing. A call that is refused still carries the slots of the ranks
/// that found nothing wrong, and forwarders drop them: the rings stay in step.
#pragma once

#include <algorithm>

#include "device/kernel.hpp"
#include "expert_parallel/internode/kernels/across_hosts.hpp"
#include "expert_parallel/throughput/kernels/dispatch.hpp"

namespace tokenyard::internode {

struct DispatchParams {
  /// As inside a host, but for its shares, stages and window of control words, which are not used.
  throughput::DispatchParams dispatch;
  Rails rails;
  RailRoute route;
  uint32_t groups_per_block;  ///< of tokens, that a block counts
  uint32_t senders;           ///< warps of a block that send; the other movers forward
  uint32_t movers;
  uint32_t held;  ///< slots that a mover holds at once, at most kHeldMax

  TOKENYARD_HOST_DEVICE bool counts() const {
    return dispatch.call.kind != throughput::CallKind::dispatch_again;
  }
};

/// The block's shared memory behind RailShared. Counting needs the memory of the movers' stages,
/// which are used later.
struct DispatchTail {
  uint32_t warps, movers, held, stage_bytes, ranks, greeting_words;
  TokenColumns columns;
  std::byte* base = nullptr;

  TOKENYARD_HOST_DEVICE static DispatchTail of(const DispatchParams& params, uint32_t warps) {
    return {.warps = warps,
            .movers = params.movers,
            .held = params.held,
            .stage_bytes = params.rails.slot_stages_bytes,
            .ranks = params.dispatch.call.ranks,
            .greeting_words = params.rails.layout.greeting.words(),
            .columns = params.rails.columns};
  }
  /// [held] of a mover, each for one slot.
  TOKENYARD_HOST_DEVICE std::byte* stages(uint32_t mover) const {
    return base + size_t{mover} * held * stage_bytes;
  }

  // While tokens are counted.
  /// [columns per token]: of a warp's tokens; later, of all tokens before them.
  TOKENYARD_HOST_DEVICE uint32_t* warp_counts(uint32_t warp) const {
    return reinterpret_cast<uint32_t*>(base) + warp * columns.per_token();
  }
  /// [columns]: of the block's tokens.
  TOKENYARD_HOST_DEVICE uint32_t* block_counts() const { return warp_counts(warps); }
  /// [columns per token]: tokens of a warp's group that go there, a bit each.
  TOKENYARD_HOST_DEVICE uint32_t* warp_going(uint32_t warp) const {
    return block_counts() + columns.count() + warp * columns.per_token();
  }
  /// [columns per token]: of the tokens of earlier blocks.
  TOKENYARD_HOST_DEVICE uint32_t* earlier() const { return warp_going(warps); }
  /// Of warp_counts and block_counts, which begin as 0.
  TOKENYARD_HOST_DEVICE uint32_t zeroed_words() const {
    return warps * columns.per_token() + columns.count();
  }
  TOKENYARD_HOST_DEVICE uint32_t counting_words() const {
    return zeroed_words() + (warps + 1) * columns.per_token();
  }

  // Later.
  /// [columns before the refusal]: of all tokens of the rank.
  TOKENYARD_HOST_DEVICE uint32_t* totals() const {
    return reinterpret_cast<uint32_t*>(base + first_bytes());
  }
  TOKENYARD_HOST_DEVICE throughput::ReadyWords ready_words() const {
    return {totals() + columns.refusal(0), ranks};
  }
  /// [greeting_words]: of one source, on their way.
  TOKENYARD_HOST_DEVICE uint32_t* greeting() const {
    return totals() + columns.refusal(0) + throughput::kReadyWords * ranks;
  }
  TOKENYARD_HOST_DEVICE uint32_t bytes() const {
    return first_bytes() + (columns.refusal(0) + throughput::kReadyWords * ranks + greeting_words) *
                               uint32_t{sizeof(uint32_t)};
  }

 private:
  TOKENYARD_HOST_DEVICE uint32_t first_bytes() const {
    return std::max(movers * held * stage_bytes, counting_words() * uint32_t{sizeof(uint32_t)});
  }
};

TOKENYARD_DECLARE_KERNEL(dispatch_kernel, DispatchParams);

}  // namespace tokenyard::internode
