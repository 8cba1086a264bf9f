#pragma once

#include "bench/megakernel_decode/stage_kernel.hpp"
#include "decoder/tasks/dense_list.hpp"

namespace tokenyard::bench {

namespace mk = tokenyard::megakernel;

/// Loads the block's only packet, on one lane, and announces that no other follows.
TOKENYARD_DEVICE void bring_packet(const StageParams& stage, mk::WorkerShared& shared) {
  shared.notes[0] = {.iteration = stage.run.first, .kind = mk::NoteKind::task};
  shared.packet_full[0].arrive_expect(kStagePacketBytes);
  bulk::load(shared.packets[0], stage.packets + block::index() * kStagePacketBytes,
             kStagePacketBytes, shared.packet_full[0]);
  shared.notes[1] = {.iteration = 0, .kind = mk::NoteKind::end};
  shared.packet_full[1].arrive();
}

TOKENYARD_DEVICE void run_stage(const StageParams& stage) {
  const mk::RunParams& params = stage.run;
  grid::let_next_start();
  auto& shared = block::shared<mk::WorkerShared>();
  mk::ready_shared_memory(params, shared);
  block::sync();
  const WaitContext idle = mk::idle_wait_context(params);
  mk::Working working{.params = params, .shared = shared, .idle = idle, .began_ns = now_ns()};
  if (warp::index() < params.compute_warps) {
    mk::Worker<mk::DenseTasks>(working).run_one();
  } else if (mk::loads_as(params, 1, mk::kFeederLane)) {
    bring_packet(stage, shared);
  } else {
    mk::load_for_tasks<mk::DenseTasks>(working);
  }
}

TOKENYARD_DEFINE_KERNEL(stage_kernel, run_stage, StageParams, mk::WorkerShared, mk::kThreadsMax)

}  // namespace tokenyard::bench
