// Two ranks exchange arrays, each receiving into the memory from which it sends.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "collectives/engine_calls.hpp"
#include "collectives/engine_world.hpp"

namespace tokenyard::collectives::testing {
namespace {

FrameProtocol talk_over(uint32_t self, std::shared_ptr<MemoryPipe> out,
                        std::shared_ptr<MemoryPipe> in) {
  const auto over = std::make_shared<std::atomic<bool>>(false);
  return FrameProtocol(2, self,
                       [=](uint32_t) { return std::make_shared<MemoryChannel>(out, in, over); });
}

// One direction has little room, the other much: bytes arrive long before the bytes in their place
// have been sent.
TEST(Exchange, TakesNothingWhosePlaceIsNotOutYet) {
  for (const size_t room : {size_t{7}, size_t{100}, size_t{1000}}) {
    for (const size_t granule : {size_t{1}, size_t{4}, size_t{16}}) {
      const auto narrow = std::make_shared<MemoryPipe>(room);
      const auto wide = std::make_shared<MemoryPipe>(100'000);
      FrameProtocol here = talk_over(0, narrow, wide), there = talk_over(1, wide, narrow);
      std::vector<std::byte> mine(4800, std::byte{1}), theirs(4800, std::byte{2}), got(4800);
      here.begin(1, {});
      there.begin(1, {});
      there.post(0, theirs);
      const uint64_t frame = here.posted(1);
      here.post(1, mine);

      auto exchanged = here.receive_in_exchange(
          1, frame, mine.size(), granule, [&](uint64_t at, std::span<const std::byte> piece) {
            std::memcpy(mine.data() + at, piece.data(), piece.size());
          });
      Receive received = there.receive(0, got);
      bool here_done = false, there_done = false;
      for (int turn = 0; turn < 5000 && !(here_done && there_done); ++turn) {
        here_done = here_done || exchanged.ready();
        there_done = there_done || received.ready();
      }
      EXPECT_TRUE(here_done);
      EXPECT_TRUE(there_done);
      EXPECT_EQ(got, std::vector<std::byte>(4800, std::byte{1})) << room << " " << granule;
      EXPECT_EQ(mine, theirs);
    }
  }
}

// Both ranks add by themselves, in pieces of different lengths. Where the bits depend on which
// operand comes first, as for two NaNs or zeros, they must not depend on the rank that adds.
TEST(Exchange, GivesTheSameBitsForNanAndZero) {
  constexpr size_t elements = 40'003;
  for (const ReduceOp op : {ReduceOp::sum, ReduceOp::average, ReduceOp::min, ReduceOp::max}) {
    for (const DataType type : {DataType::float32, DataType::float64, DataType::bfloat16}) {
      for (const size_t ring_bytes : {size_t{4003}, size_t{50'001}}) {
        EngineWorld world({.ranks = 2, .ring_bytes = ring_bytes, .chunk_bytes = 32 << 10});
        std::mt19937_64 random(3);
        std::vector<std::vector<uint64_t>> values(2, std::vector<uint64_t>(elements));
        for (auto& mine : values) {
          for (uint64_t& value : mine) value = random() % 2 == 0 ? ~random() | 0x7ff8ull << 48 : 0;
          // Halves of such numbers are NaNs of the short types too; and zeros have signs.
          for (size_t i = 0; i < elements; i += 3) mine[i] = random() % 2 << 63;
        }
        std::vector<std::shared_ptr<Operation>> operations;
        for (uint32_t rank = 0; rank < 2; ++rank) {
          const size_t all = elements * sizeof(uint64_t) / bytes_of(type);
          operations.push_back(world.start(
              rank, all_reduce_call({values[rank].data(), all, type}, op, Algorithm::direct)));
        }
        world.run(operations);
        for (const auto& operation : operations) ASSERT_EQ(error_text(*operation), "");
        EXPECT_EQ(values[0], values[1]) << name_of(op) << " of " << name_of(type);
      }
    }
  }
}

}  // namespace
}  // namespace tokenyard::collectives::testing
