/// A block that leaves while its loads are in flight: others keep the machine busy, so the loads
/// take longer than any timeout (seed 3 of suite throughput_wide: a dispatch refused on 48 ranks).
#include "expert_parallel/throughput/kernels/ring.hpp"
#include "fabric/world_access.hpp"

#include <gtest/gtest.h>

#include "device/accelerator.hpp"
#include "simulation/suite.hpp"
#include "world/simulated.hpp"

namespace tokenyard::throughput {
namespace ring_test {

constexpr uint32_t kStages = 3, kLoads = 2, kStageBytes = 128;
constexpr uint64_t kBusyNs = 4'000'000;

struct RingParams {
  const std::byte* from;  ///< [kLoads][kStageBytes]
  uint32_t* ticks;        ///< [1] written by the busy warp
  uint64_t* landed_ns;    ///< [1] time until the loads had landed
};

struct RingShared {
  Completion full[kStages];
  alignas(128) std::byte stages[kStages][kStageBytes];
};

/// The first warp starts loads and leaves. The second keeps memory busy meanwhile, so copies that
/// move only when it is idle stay in flight for as long.
void leave_after_loads(const RingParams& params) {
  auto& shared = block::shared<RingShared>();
  const uint64_t begin_ns = now_ns();
  if (thread::index() == 0) {
    for (Completion& full : shared.full) full.init(1);
    fence_async();
    RingPosition loading;
    for (uint32_t load = 0; load < kLoads; ++load, loading.advance(1, kStages)) {
      shared.full[load].arrive_expect(kStageBytes);
      bulk::load(shared.stages[load], params.from + load * kStageBytes, kStageBytes,
                 shared.full[load]);
    }
    let_loads_land(shared.full, loading, kStages);
    *params.landed_ns = now_ns() - begin_ns;
  } else if (thread::index() == kWarpLanes) {
    for (uint32_t tick = 0; now_ns() - begin_ns < kBusyNs; ++tick) {
      store<Order::relaxed, Scope::gpu>(params.ticks, tick);
      nap(0);
    }
  }
}
TOKENYARD_DEFINE_HOST_KERNEL(leave_after_loads_kernel, leave_after_loads, RingParams, RingShared,
                             64)

uint64_t ns_until_landed(World& world) {
  Accelerator& accelerator = accelerator_of(world);
  auto* const from = static_cast<std::byte*>(accelerator.allocate(kLoads * kStageBytes));
  auto* const ticks = static_cast<uint32_t*>(accelerator.allocate(sizeof(uint32_t)));
  auto* const landed_ns = static_cast<uint64_t*>(accelerator.allocate(sizeof(uint64_t)));
  launch(accelerator, leave_after_loads_kernel, {.blocks = 1, .warps = 2}, Stream{},
         RingParams{.from = from, .ticks = ticks, .landed_ns = landed_ns});
  const Event end = accelerator.record(Stream{});
  EXPECT_TRUE(accelerator.wait_until(accelerator.now() + world.timeout(),
                                     [&] { return accelerator.done(end); }));
  const uint64_t result = *landed_ns;
  accelerator.free(landed_ns);
  accelerator.free(ticks);
  accelerator.free(from);
  return result;
}

TEST(Ring, ABlockStaysUntilItsLoadsHaveLandedHoweverLong) {
  uint32_t late = 0;
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    simulation::Trace trace;
    simulation::SeedRun run(seed, trace, nullptr);
    simulated::run(run, {.ranks = 1, .arena_bytes = 4096}, [&](World& world) {
      if (ns_until_landed(world) >= kBusyNs) ++late;
    }).require_clean();
  }
  // Some runs must delay the loads as long as possible, or the test shows nothing.
  EXPECT_GT(late, 0u);
}

}  // namespace ring_test
}  // namespace tokenyard::throughput
