/// The identity words, and the collective words of warps and blocks.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <numeric>

#include "device/accelerators.hpp"
#include "device/device_array.hpp"
#include "device/word_kernels.hpp"

namespace tokenyard::testing {

namespace {

class Words : public OnAccelerator {};
INSTANTIATE_ON_ACCELERATORS(Words);

TEST_P(Words, EveryThreadKnowsWhoItIs) {
  constexpr uint32_t kBlocks = 3, kThreads = 96;
  DeviceArray<Who> who(*accelerator, kBlocks * kThreads);
  launch(*accelerator, identity_kernel, {.blocks = kBlocks, .warps = 3}, {}, {.who = who.data()});
  const auto seen = who.read();
  for (uint32_t b = 0; b < kBlocks; ++b) {
    for (uint32_t t = 0; t < kThreads; ++t) {
      const Who& me = seen[b * kThreads + t];
      EXPECT_EQ(me.thread, t);
      EXPECT_EQ(me.warp, t / 32);
      EXPECT_EQ(me.lane, t % 32);
      EXPECT_EQ(me.warps, 3u);
      EXPECT_EQ(me.threads, kThreads);
      EXPECT_EQ(me.block, b);
      EXPECT_EQ(me.blocks, kBlocks);
    }
  }
}

/// Checks each lane's results against expected values computed one lane at a time.
void expect_lanes(const std::vector<uint32_t>& values, uint32_t lanes,
                  const std::vector<LaneResults>& results) {
  const auto named = [&](uint32_t lane) { return lane < 32 && (lanes >> lane & 1); };
  uint32_t votes = 0, sum = 0, bits = 0, lowest = UINT32_MAX, highest = 0;
  int32_t signed_lowest = INT32_MAX, signed_highest = INT32_MIN;
  for (uint32_t lane = 0; lane < 32; ++lane) {
    if (!named(lane)) continue;
    const auto as_signed = static_cast<int32_t>(values[lane]);
    votes |= (values[lane] & 1) << lane;
    sum += values[lane];
    bits |= values[lane];
    lowest = std::min(lowest, values[lane]);
    highest = std::max(highest, values[lane]);
    signed_lowest = std::min(signed_lowest, as_signed);
    signed_highest = std::max(signed_highest, as_signed);
  }
  for (uint32_t lane = 0; lane < 32; ++lane) {
    if (!named(lane)) continue;
    SCOPED_TRACE(::testing::Message() << "lane " << lane << " of " << std::hex << lanes);
    const LaneResults& mine = results[lane];
    if (named(7)) {
      EXPECT_EQ(mine.shuffled, values[7]);
      EXPECT_EQ(mine.shuffled_wide, uint64_t{values[7]} << 32 | 7);
    }
    if (named(lane ^ 3)) {
      EXPECT_EQ(mine.shuffled_xor, values[lane ^ 3]);
    }
    const uint32_t above = lane < 2 ? lane : lane - 2, below = lane + 2 > 31 ? lane : lane + 2;
    if (named(above)) {
      EXPECT_EQ(mine.shuffled_up, values[above]);
    }
    if (named(below)) {
      EXPECT_EQ(mine.shuffled_down, values[below]);
    }
    uint32_t same = 0;
    for (uint32_t other = 0; other < 32; ++other)
      if (named(other) && (values[other] & 3) == (values[lane] & 3)) same |= 1u << other;
    EXPECT_EQ(mine.votes, votes);
    EXPECT_EQ(mine.any, named(7));
    EXPECT_EQ(mine.all, !named(7));
    EXPECT_EQ(mine.same, same);
    EXPECT_EQ(mine.sum, sum);
    EXPECT_EQ(mine.min, lowest);
    EXPECT_EQ(mine.max, highest);
    EXPECT_EQ(mine.bits, bits);
    EXPECT_EQ(mine.signed_sum, static_cast<int32_t>(sum));
    EXPECT_EQ(mine.signed_min, signed_lowest);
    EXPECT_EQ(mine.signed_max, signed_highest);
    EXPECT_EQ(mine.below, (1u << lane) - 1);
    EXPECT_EQ(mine.set, static_cast<uint32_t>(std::popcount(values[lane])));
    EXPECT_EQ(mine.first, static_cast<uint32_t>(std::countr_zero(values[lane])));
  }
}

TEST_P(Words, LanesExchangeVoteAndReduce) {
  std::vector<uint32_t> values(32);
  for (uint32_t lane = 0; lane < 32; ++lane) values[lane] = lane * 2654435761u ^ lane << 28;
  values[0] = 0;
  values[31] = 0xffffffff;  // The largest unsigned value; -1 as a signed one.
  DeviceArray<uint32_t> in(*accelerator, values);
  for (const uint32_t lanes :
       {0xffffffffu, 0x0000ffffu, 0xffff0000u, 0xaaaaaaaau, 1u << 7, 1u << 31, 0x80000001u}) {
    DeviceArray<LaneResults> results(*accelerator, 32);
    launch(*accelerator, lanes_kernel, {}, {},
           {.values = in.data(), .lanes = lanes, .results = results.data()});
    expect_lanes(values, lanes, results.read());
  }
}

TEST_P(Words, AWarpElectsOneLaneAndHearsItOnce) {
  std::vector<uint32_t> values(32);
  std::iota(values.begin(), values.end(), 5);
  DeviceArray<uint32_t> in(*accelerator, values), before(*accelerator, 32),
      elected(*accelerator, 32), told(*accelerator, 32), times(*accelerator, 1);
  launch(*accelerator, whole_warp_kernel, {}, {},
         {.values = in.data(),
          .before = before.data(),
          .elected = elected.data(),
          .told = told.data(),
          .times = times.data()});
  std::vector<uint32_t> sums(32);
  std::exclusive_scan(values.begin(), values.end(), sums.begin(), 0u);
  EXPECT_EQ(before.read(), sums);
  std::vector<uint32_t> first(32, 0);
  first[0] = 1;
  EXPECT_EQ(elected.read(), first);
  EXPECT_EQ(told.read(), std::vector<uint32_t>(32, 100));
  EXPECT_EQ(times.read()[0], 1u);
}

TEST_P(Words, ABlockMeetsVotesAndSharesMemory) {
  constexpr uint32_t kBlocks = 2, kRounds = 5;
  DeviceArray<uint32_t> reversed(*accelerator, kBlocks * kBlockThreads),
      some(*accelerator, kBlockThreads), none(*accelerator, kBlockThreads),
      received(*accelerator, kRounds), tail_offset(*accelerator, 1),
      tail(*accelerator, kBlockThreads);
  launch(*accelerator, block_kernel,
         {.blocks = kBlocks, .warps = kBlockThreads / 32, .extra_shared_bytes = 4 * kBlockThreads},
         {},
         {.rounds = kRounds,
          .reversed = reversed.data(),
          .some = some.data(),
          .none = none.data(),
          .received = received.data(),
          .tail_offset = tail_offset.data(),
          .tail = tail.data()});
  const auto found = reversed.read();
  const auto found_in_tail = tail.read();
  for (uint32_t t = 0; t < kBlockThreads; ++t) {
    EXPECT_EQ(found[t], kBlockThreads - 1 - t);
    EXPECT_EQ(found[kBlockThreads + t], 2 * kBlockThreads - 1 - t);
    EXPECT_EQ(found_in_tail[t], 2 * (kBlockThreads - 1 - t));
  }
  EXPECT_EQ(some.read(), std::vector<uint32_t>(kBlockThreads, 1));
  EXPECT_EQ(none.read(), std::vector<uint32_t>(kBlockThreads, 0));
  EXPECT_EQ(received.read(), (std::vector<uint32_t>{1000, 1001, 1002, 1003, 1004}));
  EXPECT_GE(tail_offset.read()[0], sizeof(BlockShared));
  EXPECT_EQ(tail_offset.read()[0] % 128, 0u);
}

}  // namespace

}  // namespace tokenyard::testing
