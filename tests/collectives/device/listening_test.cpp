// Waits of collectives read the host's abort flag, across PCIe on a GPU, at a bounded rate: once
// per block and millisecond, whatever number of threads wait.
#include <gtest/gtest.h>

#include "collectives/device/kernels/packets.hpp"
#include "collectives/device/kernels/rings.hpp"
#include "collectives/device/kernels/slots.hpp"
#include "collectives/device/lonely_rank.hpp"
#include "device/block_deadline.hpp"

namespace tokenyard::test {
namespace {

constexpr uint32_t kLoadsMax = kBlocks * (kTimeoutMs * 1'000'000 / kTurnNs + 2);

TEST(DeviceCollectivesListening, WaitsForSlotsReadTheFlagInTurns) {
  LonelyRank rank;
  const uint32_t loads =
      rank.loads_in(slots_kernel, SlotsParams{rank.params(), 512, 512 / kBlocks});
  EXPECT_EQ(rank.failure(), Failure::deadline);
  EXPECT_LE(loads, kLoadsMax);
  EXPECT_GT(loads, kBlocks);
}

TEST(DeviceCollectivesListening, WaitsForChunksReadTheFlagInTurns) {
  LonelyRank rank;
  const uint32_t loads = rank.loads_in(rings_kernel, RingsParams{rank.params(), 256, 1});
  EXPECT_EQ(rank.failure(), Failure::deadline);
  EXPECT_LE(loads, kLoadsMax);
  EXPECT_GT(loads, kBlocks);
}

TEST(DeviceCollectivesListening, TheFlagEndsAllWaitsOfAKernel) {
  LonelyRank rank;
  rank.set(abort_for_lost(1));
  rank.loads_in(rings_kernel, RingsParams{rank.params(), 256, 1});
  EXPECT_EQ(rank.failure(), Failure::abort_flag);
  EXPECT_LT(rank.report().waited_ns, kTimeoutMs * 1'000'000ull);
}

// One thread of a block reads the words of all ranks, so a goodbye reaches the wait that it ends.
TEST(DeviceCollectivesListening, AGoodbyeEndsWaitsForItsRank) {
  for (const Protocol protocol : {Protocol::slots, Protocol::packets, Protocol::rings}) {
    LonelyRank rank;
    rank.leave(1);
    if (protocol == Protocol::slots)
      rank.loads_in(slots_kernel, SlotsParams{rank.params(), 512, 512 / kBlocks});
    else if (protocol == Protocol::packets)
      rank.loads_in(packets_kernel, PacketsParams{rank.params(), {}, 256, 256 / kBlocks, true});
    else
      rank.loads_in(rings_kernel, RingsParams{rank.params(), 256, 1});
    EXPECT_EQ(rank.failure(), Failure::left);
    EXPECT_EQ(rank.report().rank, 1u);
    EXPECT_LT(rank.report().waited_ns, kTimeoutMs * 1'000'000ull);
  }
}

}  // namespace
}  // namespace tokenyard::test
