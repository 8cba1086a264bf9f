/// State that the roles of a combine share: the block's shared memory, the call as one thread sees
/// it, and the ring through which rows pass.
#pragma once

#include "device/apart.hpp"
#include "device/device.hpp"
#include "expert_parallel/throughput/kernels/combine.hpp"
#include "expert_parallel/throughput/kernels/phase.hpp"

namespace tokenyard::throughput {

/// Barriers of the combine kernel; 0 is block::sync()'s.
enum class CombineBarrier : uint32_t {
  all_read = 1,  ///< warps that read other ranks' memory
};

/// Content of a stage of a pulling group: one row's segment, or nothing if a step has no row.
struct StagedRow {
  uint32_t token = 0, segment = 0;
  bool holds_row = false;
  bool begins = false, ends = false;  ///< first, last stage of the token's segment
  bool over = false;                  ///< no stage follows
};

struct CombineShared {
  CallShared call;
  uint32_t unread;                      ///< nonzero: a warp gave up before it had read all its rows
  Completion full[kCombineStagesMax];   ///< [groups][stages]
  Completion empty[kCombineStagesMax];  ///< every summing lane of the group arrives
  /// Completed once `staged` describes a stage, before its row has arrived.
  Completion named[kCombineStagesMax];
  StagedRow staged[kCombineStagesMax];
  /// In blocks that prepare: the place below which each warp has written its part of all rows.
  uint32_t written[kCombineWarpsMax];
};

/// Returns the number of pulling blocks, which come first.
TOKENYARD_DEVICE uint32_t pullers_of(const CombineParams& params) {
  return grid::blocks() - params.preparation.blocks;
}

/// The role of a warp in its group.
struct CombineWarp {
  uint32_t group;    ///< equal to the number of groups for the warp that fetches weights
  uint32_t summer;   ///< index in the group; equal to `summers` for the warp that fetches
  uint32_t summers;  ///< summing warps per group

  TOKENYARD_DEVICE static uint32_t warps_of_group(const CombineParams& params) {
    return block::threads() / kWarpLanes / params.groups;
  }
  TOKENYARD_DEVICE static CombineWarp mine(const CombineParams& params) {
    const uint32_t warps = warps_of_group(params);
    const uint32_t group = warp::index() / warps;
    const uint32_t place = warp::index() - group * warps;
    return {.group = group, .summer = place == 0 ? warps - 1 : place - 1, .summers = warps - 1};
  }
  TOKENYARD_DEVICE bool fetches() const { return summer == summers; }
};

struct Combine {
  const CombineParams& params;
  CombineShared& shared;
  const CombineTail& tail;
  const CallDeadline& deadline;
  uint32_t epoch, route_epoch;

  TOKENYARD_DEVICE bool prepares() const { return block::index() >= pullers_of(params); }
  TOKENYARD_DEVICE ReadyWords ready_words() const { return tail.ready_words(); }

  /// Waits until a stage is filled or emptied.
  TOKENYARD_DEVICE bool await_stage(Phase phase, Completion& completion, uint32_t lap) const {
    Awaited what{.phase = static_cast<uint32_t>(phase),
                 .rank = params.call.rank,
                 .expected = lap + 1,
                 .seen = lap};
    return wait_until(deadline, what, [&] { return completion.done(lap & 1); });
  }
};

/// The ring of one group.
struct CombineRing {
  Completion* full;   ///< [stages]
  Completion* empty;  ///< [stages]
  Completion* named;  ///< [stages]
  StagedRow* staged;  ///< [stages]
  std::byte* stages;  ///< [stages][stage_bytes]

  TOKENYARD_DEVICE static CombineRing of(const Combine& call, uint32_t group) {
    const uint32_t first = group * call.params.stages_most();
    return {call.shared.full + first, call.shared.empty + first, call.shared.named + first,
            call.shared.staged + first,
            call.tail.stages() + size_t{first} * call.params.plan.stage_bytes};
  }
};

}  // namespace tokenyard::throughput
