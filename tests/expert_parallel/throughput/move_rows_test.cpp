/// A mover whose call fails while it works: its lanes check one by one and may see different
/// answers, but must continue as one warp.
#include "expert_parallel/throughput/kernels/move_rows_kernel.hpp"
#include "fabric/world_access.hpp"

#include <gtest/gtest.h>

#include <array>

#include "fabric/abort_flag.hpp"
#include "simulation/suite.hpp"
#include "world/simulated.hpp"

namespace tokenyard::throughput {
namespace move_rows_test {

struct MoverParams {
  DispatchParams dispatch;
  uint32_t* moved;  ///< [32] the mover's result in each lane
};

/// The first warp has no rows to move; the second fails the call meanwhile.
void move_while_failing(const MoverParams& params) {
  auto& shared = block::shared<DispatchShared>();
  DispatchTail tail = DispatchTail::of(params.dispatch, 2);
  tail.base = block::shared_tail<DispatchShared>();
  const CallDeadline deadline(params.dispatch.call.wait_context);
  for (uint32_t i = thread::index(); i < tail.word_count(); i += block::threads())
    tail.words()[i] = 0;
  block::sync();
  if (warp::index() == 1) {
    if (warp::lane() == 0) deadline.fail(Failure::refused, Awaited{});
    return;
  }
  RowMover mover(params.dispatch, shared, tail);
  const Dispatch call{params.dispatch, shared, tail, deadline, 1, 0};
  params.moved[warp::lane()] = mover.move_all(call) ? 1 : 0;
}
TOKENYARD_DEFINE_HOST_KERNEL(move_while_failing_kernel, move_while_failing, MoverParams,
                             DispatchShared, 64)

/// Returns how many of the mover's lanes returned that all rows have been moved.
uint32_t lanes_that_moved(World& world) {
  Accelerator& accelerator = accelerator_of(world);
  ErrorRecord failure(accelerator, abort_flag_of(world));
  auto* const moved = static_cast<uint32_t*>(accelerator.allocate(kWarpLanes * sizeof(uint32_t)));
  std::array<std::byte, 1> nowhere;
  std::array<std::byte*, 1> arenas{nowhere.data()};
  MoverParams params{};
  params.moved = moved;
  params.dispatch.call.ranks = 1;
  params.dispatch.call.arenas = Peers::of(arenas, 0, arenas.data());
  params.dispatch.call.wait_context = failure.wait_context(world.timeout());
  params.dispatch.movers = 1;
  params.dispatch.plan = {
      .stages = 1, .stage_bytes = 128, .segment_bytes = 128, .segments = 1, .lag = 0};
  const DispatchTail tail = DispatchTail::of(params.dispatch, 2);
  launch(accelerator, move_while_failing_kernel,
         {.blocks = 1, .warps = 2, .extra_shared_bytes = tail.bytes()}, Stream{}, params);
  const Event end = accelerator.record(Stream{});
  EXPECT_TRUE(accelerator.wait_until(accelerator.now() + world.timeout(),
                                     [&] { return accelerator.done(end); }));
  uint32_t lanes = 0;
  for (uint32_t lane = 0; lane < kWarpLanes; ++lane) lanes += moved[lane];
  accelerator.free(moved);
  return lanes;
}

TEST(RowMover, LanesAgreeWhetherTheCallHasFailed) {
  std::array<uint32_t, kWarpLanes + 1> runs{};  // By the number of lanes that moved.
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    simulation::Trace trace;
    simulation::SeedRun run(seed, trace, nullptr);
    simulated::run(run, {.ranks = 1, .arena_bytes = 4096}, [&](World& world) {
      ++runs[lanes_that_moved(world)];
    }).require_clean();
  }
  // Some runs must fail early and some late, or the test shows nothing.
  EXPECT_GT(runs[0], 0u);
  EXPECT_GT(runs[kWarpLanes], 0u);
  for (uint32_t lanes = 1; lanes < kWarpLanes; ++lanes)
    EXPECT_EQ(runs[lanes], 0u) << lanes << " lanes of 32 returned that their rows had moved";
}

}  // namespace move_rows_test
}  // namespace tokenyard::throughput
