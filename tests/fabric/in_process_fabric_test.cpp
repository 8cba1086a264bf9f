/// What one rank cannot do fails on all ranks of a process, at once.
#include "fabric/host/in_process_fabric.hpp"

#include <gtest/gtest.h>

#include <limits>

#include "fabric/in_process_mesh.hpp"
#include "fabric/manual_accelerator.hpp"
#include "fabric/ranks.hpp"
#include "fabric/worlds.hpp"

namespace tokenyard {
namespace {

constexpr uint32_t kRanks = 3;
/// Nobody waits as long as this in these tests.
constexpr std::chrono::seconds kLong{60};

TEST(InProcessFabric, AnArenaThatOneRankCannotHaveFailsOnAll) {
  const auto ends = InProcessMesh::make(kRanks);
  const auto failures = run_ranks(kRanks, [&](uint32_t rank) {
    ManualAccelerator accelerator;
    AlarmBell alarm(accelerator);
    Bootstrap talk(ends[rank], Membership::of(*ends[rank]), accelerator, alarm);
    InProcessFabric fabric(1);
    const size_t bytes = rank == 1 ? std::numeric_limits<size_t>::max() : 1 << 20;
    (void)fabric.prepare(talk, {.arena_bytes = bytes, .host_of = {0, 0, 0}, .timeout = kLong},
                         accelerator.now() + kLong);
  });
  for (const auto& failure : failures) {
    EXPECT_TRUE(holds<OsError>(failure, [](const OsError& error) {
      EXPECT_EQ(error.call, "mmap of 18446744073709551615 bytes on rank 1");
    }));
  }
}

}  // namespace
}  // namespace tokenyard
