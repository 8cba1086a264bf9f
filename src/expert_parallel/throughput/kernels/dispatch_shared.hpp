/// State that the phases of a dispatch share: the block's shared memory, and the call as one thread
/// sees it.
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
  experts_summed = 1,  ///< warps of block 0 that move no rows
  counted = 2,         ///< warps that move no rows: after counting, and once places are known
  greeted = 3,         ///< movers: ready words have arrived
};

struct DispatchShared {
  CallShared call;
  Completion full[kDispatchStagesMax];  ///< [movers][stages]
  uint32_t refused_token;               ///< token << 2 | RefusalKind of the block's first bad token
  uint32_t refusing_block;  ///< first block of all ranks that refuses, as a slot (source and block)
  uint32_t full_rank;       ///< first rank that would receive more rows than it has places for
  uint32_t differing_rank;  ///< first rank whose row format or scales differ from those of the
                            ///< first present rank
};

struct Dispatch {
  const DispatchParams& params;
  DispatchShared& shared;
  const DispatchTail& tail;
  const CallDeadline& deadline;
  uint32_t epoch, route_epoch;

  TOKENYARD_DEVICE ReadyWords ready_words() const { return tail.ready_words(); }
  TOKENYARD_DEVICE bool moves_rows() const { return warp::index() < params.movers; }
  /// Returns the first warp that moves no rows.
  TOKENYARD_DEVICE uint32_t first_other() const { return params.movers; }
  /// Returns the last such warp, which has the fewest tokens: none in small calls.
  TOKENYARD_DEVICE uint32_t last_other() const { return block::threads() / kWarpLanes - 1; }
  /// The threads of the warps that move no rows. Only these may call it.
  TOKENYARD_DEVICE ThreadGroup others() const {
    const uint32_t movers = params.movers * kWarpLanes;
    return {thread::index() - movers, block::threads() - movers};
  }
  TOKENYARD_DEVICE bool refused() const {
    return shared.refusing_block != kNothingRefused || shared.full_rank != kNothingRefused ||
           shared.differing_rank != kNothingRefused;
  }

  /// Returns the entry in shared memory of a token's row on a rank, or null if it is not held
  /// there.
  TOKENYARD_DEVICE int32_t* held_row(uint32_t token, uint32_t rank) const {
    const uint32_t place = token - block::index() * params.shares.tokens_a_block;
    return place < params.tokens_held ? tail.held_rows() + place * tail.ranks + rank : nullptr;
  }

  TOKENYARD_DEVICE void refuse(uint32_t token, RefusalKind kind) const {
    fetch_min<Order::relaxed, Scope::block>(&shared.refused_token,
                                            token << 2 | static_cast<uint32_t>(kind));
  }

  /// Waits for a word that a block of `source` writes into our window in this call. Relaxed: it
  /// releases no other data.
  TOKENYARD_DEVICE Stamped await_word(Phase phase, uint32_t source, Peer<Stamped> word) const {
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
