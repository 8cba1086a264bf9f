/// What the roles of a combine share: the block's shared memory, the call as a thread sees it, and
/// the ring through which rows pass.
#pragma once

#include "device/apart.hpp"
#include "device/device.hpp"
#include "expert_parallel/throughput/kernels/combine.hpp"
#include "expert_parallel/throughput/kernels/phase.hpp"

namespace tokenyard::throughput {

/// Barriers of the combine kernel; 0 is block::sync()'s.
enum class CombineBarrier : uint32_t {
  all_read = 1,  ///< among the warps that read what lies on other ranks
};

/// What is in a stage of a group that pulls: a row's segment, or nothing where a step has no row.
struct StagedRow {
  uint32_t token = 0, segment = 0;
  bool holds_row = false;
  bool begins = false, ends = false;  ///< of those of the token's segment, the first one, the last
  bool over = false;                  ///< nothing comes any more
};

struct CombineShared {
  CallShared call;
  uint32_t unread;  ///< not 0: a warp has given up before it had read all that it should
  Completion full[kCombineStagesMax];   ///< [groups][stages]
  Completion empty[kCombineStagesMax];  ///< arrived at by every lane of the group that sums
  /// Before its row is here: what will be in a stage.
  Completion named[kCombineStagesMax];
  StagedRow staged[kCombineStagesMax];
  /// Of a block that prepares: up to which place each warp has written rows, or its part of them.
  uint32_t written[kCombineWarpsMax];
};

/// Blocks that pull: the first ones.
DEVICE uint32_t pullers_of(const CombineParams& params) {
  return grid::blocks() - params.preparation.blocks;
}

/// A warp's place in its group.
struct CombineWarp {
  uint32_t group;    ///< as many as there are groups: the warp that brings weights home
  uint32_t summer;   ///< of the group's; summers: the one that fetches
  uint32_t summers;  ///< of each group

  DEVICE static uint32_t warps_of_group(const CombineParams& params) {
    return block::threads() / kWarpLanes / params.groups;
  }
  DEVICE static CombineWarp mine(const CombineParams& params) {
    const uint32_t warps = warps_of_group(params);
    const uint32_t group = warp::index() / warps;
    const uint32_t place = warp::index() - group * warps;
    return {.group = group, .summer = place == 0 ? warps - 1 : place - 1, .summers = warps - 1};
  }
  DEVICE bool fetches() const { return summer == summers; }
};

struct Combine {
  const CombineParams& params;
  CombineShared& shared;
  const CombineTail& tail;
  const CallDeadline& deadline;
  uint32_t epoch, route_epoch;

  DEVICE bool prepares() const { return block::index() >= pullers_of(params); }
  DEVICE ReadyWords ready_words() const { return tail.ready_words(); }

  /// For one stage to be filled or emptied; all lanes of the warp learn the same.
  DEVICE bool await_stage(Phase phase, Completion& completion, uint32_t lap) const {
    Awaited what{.phase = static_cast<uint32_t>(phase),
                 .rank = params.call.rank,
                 .expected = lap + 1,
                 .seen = lap};
    return wait_until(deadline, what, [&] { return completion.done(lap & 1); });
  }
};

/// A group's ring.
struct CombineRing {
  Completion* full;   ///< [stages]
  Completion* empty;  ///< [stages]
  Completion* named;  ///< [stages]
  StagedRow* staged;  ///< [stages]
  std::byte* stages;  ///< [stages][stage_bytes]

  DEVICE static CombineRing of(const Combine& call, uint32_t group) {
    const uint32_t first = group * call.params.stages_most();
    return {call.shared.full + first, call.shared.empty + first, call.shared.named + first,
            call.shared.staged + first,
            call.tail.stages() + size_t{first} * call.params.plan.stage_bytes};
  }
};

}  // namespace tokenyard::throughput
