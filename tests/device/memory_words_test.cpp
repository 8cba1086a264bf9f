/// The words that access memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "device/accelerators.hpp"
#include "device/device_array.hpp"
#include "device/memory_kernels.hpp"
#include "device/wait_context_cell.hpp"

namespace tokenyard::testing {

namespace {

class MemoryWords : public OnAccelerator {};
INSTANTIATE_ON_ACCELERATORS(MemoryWords);

TEST_P(MemoryWords, LoadsGiveWhatStoresWroteAtEverySizeOrderAndScope) {
  constexpr uint32_t kCells = 6;
  DeviceArray<MemoryCells> cells(*accelerator, kCells), echoed(*accelerator, kCells);
  launch(*accelerator, memory_kernel, {}, {}, {.cells = cells.data(), .echoed = echoed.data()});
  for (const auto& seen : {cells.read(), echoed.read()}) {
    for (uint32_t at = 0; at < kCells; ++at) {
      EXPECT_EQ(seen[at].one, 0xa1 + at);
      EXPECT_EQ(seen[at].two, 0xa102 + at);
      EXPECT_EQ(seen[at].four, 0xa1020304 + at);
      EXPECT_EQ(seen[at].eight, 0xa102030405060708 + at);
      EXPECT_EQ(seen[at].stamped.epoch, at);
      EXPECT_EQ(seen[at].stamped.value, 17u);
    }
    for (uint32_t i = 0; i < 4; ++i) EXPECT_EQ(seen[0].sixteen.word[i], i + 1);
  }
}

TEST_P(MemoryWords, ReadModifyWritesLoseNothing) {
  constexpr uint32_t kBlocks = 4, kThreads = 64, kAll = kBlocks * kThreads;
  Counters start{};
  start.smallest = start.all_bits = UINT32_MAX;
  start.signed_largest = INT32_MIN;
  start.signed_smallest = INT32_MAX;
  DeviceArray<Counters> counters(*accelerator, std::vector<Counters>{start});
  DeviceArray<uint32_t> tickets(*accelerator, kAll), exchanged(*accelerator, kAll),
      won(*accelerator, kAll);
  launch(*accelerator, modify_kernel, {.blocks = kBlocks, .warps = 2}, {},
         {.counters = counters.data(),
          .tickets = tickets.data(),
          .exchanged = exchanged.data(),
          .won = won.data()});
  const Counters end = counters.read()[0];
  EXPECT_EQ(end.added, kAll);
  EXPECT_EQ(end.largest, kAll - 1);
  EXPECT_EQ(end.smallest, 5u);
  EXPECT_EQ(end.signed_largest, static_cast<int32_t>(kAll) - 10);
  EXPECT_EQ(end.signed_smallest, 1 - static_cast<int32_t>(kAll));
  EXPECT_EQ(end.any_bits, UINT32_MAX);
  EXPECT_EQ(end.all_bits, 0xffffff00);
  EXPECT_EQ(end.wide, uint64_t{kAll} << 33);
  EXPECT_EQ(end.reduced, 3 * kAll);

  std::vector<uint32_t> every(kAll);
  std::iota(every.begin(), every.end(), 0);
  auto drawn = tickets.read();
  std::sort(drawn.begin(), drawn.end());
  EXPECT_EQ(drawn, every);
  // Every value put in came out exactly once, except the last, which is still there.
  auto chain = exchanged.read();
  chain.push_back(end.swapped);
  std::sort(chain.begin(), chain.end());
  every.push_back(kAll);
  EXPECT_EQ(chain, every);
  const auto winners = won.read();
  EXPECT_EQ(std::count(winners.begin(), winners.end(), 1u), 1);
  EXPECT_EQ(winners[end.taken - 1], 1u);
}

TEST_P(MemoryWords, VectorsPassThroughEveryCache) {
  std::vector<Bytes16> from(5);
  for (uint32_t i = 0; i < 20; ++i) from[i / 4].word[i % 4] = 100 + i;
  DeviceArray<Bytes16> in(*accelerator, from), out(*accelerator, 5);
  DeviceArray<uint64_t> wide(*accelerator, std::vector<uint64_t>{uint64_t{5} << 40}),
      wide_to(*accelerator, 1);
  launch(*accelerator, vector_kernel, {}, {},
         {.from = in.data(), .to = out.data(), .wide = wide.data(), .wide_to = wide_to.data()});
  const auto to = out.read();
  for (uint32_t i = 0; i < 20; ++i) EXPECT_EQ(to[i / 4].word[i % 4], 100 + i);
  EXPECT_EQ(wide_to.read()[0], uint64_t{5} << 40);
}

TEST_P(MemoryWords, BulkCopiesBringPiecesInAndOut) {
  for (const uint32_t pieces : {1u, 2u, 3u, 9u}) {
    std::vector<std::byte> from(pieces * kPieceBytes);
    for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 7 + i / 251);
    DeviceArray<std::byte> in(*accelerator, from), out(*accelerator, from.size());
    WaitContextCell wait_context(*accelerator, std::chrono::seconds(10));
    launch(*accelerator, bulk_kernel, {.blocks = 1, .warps = 2}, {},
           {.pieces = pieces,
            .from = in.data(),
            .to = out.data(),
            .wait_context = wait_context.wait_context});
    for (std::byte& byte : from) byte = static_cast<std::byte>(static_cast<uint32_t>(byte) + 1);
    EXPECT_EQ(out.read(), from);
    EXPECT_EQ(wait_context.failure(), Failure::none);
  }
}

}  // namespace

}  // namespace tokenyard::testing
