/// What the phases of a dispatch share: the block's shared memory, and the call as a thread sees
/// it.
#pragma once

#include "device/apart.hpp"
#include "device/device.hpp"
#include "expert_parallel/throughput/kernels/dispatch.hpp"
#include "expert_parallel/throughput/kernels/phase.hpp"
#include "expert_parallel/throughput/kernels/thread_group.hpp"

namespace tokenyard::throughput {

inline constexpr uint32_t kNothingRefused = 0xffffffff;

/// Barriers of the dispatch kernel; 0 is block::sync()'s.
enum class DispatchBarrier : uint32_t {
  experts_summed = 1,  ///< among the warps of block 0 that move no rows
  counted = 2,         ///< among the warps that move no rows; also when they know places
  greeted = 3,         ///< among the movers
};

struct DispatchShared {
  CallShared call;
  Completion full[kDispatchStagesMax];  ///< [movers][stages]
  uint32_t refused_token;   ///< token << 2 | RefusalKind of this block's first bad token
  uint32_t refusing_block;  ///< the first of all ranks' blocks that refuses, as source and block
  uint32_t full_rank;       ///< the first that more rows would come to than it has places for
  uint32_t differing_rank;  ///< the first that sends other rows or scales than rank 0
};

struct Dispatch {
  const DispatchParams& params;
  DispatchShared& shared;
  const DispatchTail& tail;
  const CallDeadline& deadline;
  uint32_t epoch, route_epoch;

  DEVICE ReadyWords ready_words() const { return tail.ready_words(); }
  DEVICE bool moves_rows() const { return warp::index() < params.movers; }
  /// Of the warps that move no rows, the first.
  DEVICE uint32_t first_other() const { return params.movers; }
  /// Of them, the last, which has the fewest tokens: of small calls, none.
  DEVICE uint32_t last_other() const { return block::threads() / kWarpLanes - 1; }
  /// Threads of the warps that move no rows; they alone ask.
  DEVICE ThreadGroup others() const {
    const uint32_t movers = params.movers * kWarpLanes;
    return {thread::index() - movers, block::threads() - movers};
  }
  DEVICE bool refused() const {
    return shared.refusing_block != kNothingRefused || shared.full_rank != kNothingRefused ||
           shared.differing_rank != kNothingRefused;
  }

  /// The row of a token of this block's, or of any token, on a rank: null if it is not held.
  DEVICE int32_t* held_row(uint32_t token, uint32_t rank) const {
    const uint32_t place = token - block::index() * params.shares.tokens_a_block;
    return place < params.tokens_held ? tail.held_rows() + place * tail.ranks + rank : nullptr;
  }

  DEVICE void refuse(uint32_t token, RefusalKind kind) const {
    fetch_min<Order::relaxed, Scope::block>(&shared.refused_token,
                                            token << 2 | static_cast<uint32_t>(kind));
  }

  /// A word that a block of `source` writes in our window, once it is this call's. Relaxed: nothing
  /// but the word is read because of it.
  DEVICE Stamped await_word(Phase phase, uint32_t source, Peer<Stamped> word) const {
    Awaited what{.phase = static_cast<uint32_t>(phase), .rank = source, .expected = epoch};
    Stamped seen{};
    wait_until(deadline, what, [&] {
      seen = load<Order::relaxed, Scope::sys>(word);
      what.seen = seen.epoch;
      return seen.epoch == epoch;
    });
    return seen;
  }
};

}  // namespace tokenyard::throughput
