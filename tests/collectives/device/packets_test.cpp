// Packets do not say of which call they are: a block compares the calls of all ranks before it
// writes a result.
#include "collectives/device/kernels/packets.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "collectives/device/lonely_rank.hpp"

namespace tokenyard::test {
namespace {

constexpr uint32_t kPieces = LonelyRank::kBytes / 16;

bool is_untouched(const LonelyRank& rank) {
  return std::all_of(rank.tensor().begin(), rank.tensor().end(),
                     [](std::byte byte) { return byte == std::byte{0}; });
}

TEST(Packets, DataOfAnotherCallAreNotAccepted) {
  for (const Movement& movement : {LonelyRank::all_reduce(), LonelyRank::broadcast_from_peer()}) {
    LonelyRank rank;
    rank.send_packets_as_peer();
    rank.begin_as_peer(Signature::of(Operation::all_reduce, ReduceOp::max, DataType::float32,
                                     Protocol::packets, 0, LonelyRank::kBytes));
    rank.loads_in(packets_kernel,
                  PacketsParams{rank.params(movement), {}, kPieces, kPieces / kBlocks, true});
    EXPECT_EQ(rank.failure(), Failure::refused);
    EXPECT_EQ(rank.report().rank, 1u);
    EXPECT_TRUE(is_untouched(rank));
  }
}

TEST(Packets, DataOfThisCallAreAcceptedAndTheirPlacesEmptied) {
  LonelyRank rank;
  rank.send_packets_as_peer();
  rank.begin_as_peer(rank.params().signature);
  rank.loads_in(
      packets_kernel,
      PacketsParams{
          rank.params(LonelyRank::broadcast_from_peer()), {}, kPieces, kPieces / kBlocks, true});
  EXPECT_EQ(rank.failure(), Failure::none);
  const std::array<uint32_t, 4> sent{1, 2, 3, 4};
  for (uint32_t piece = 0; piece < kPieces; ++piece)
    EXPECT_EQ(std::memcmp(rank.tensor().data() + piece * sizeof(sent), &sent, sizeof(sent)), 0);
  EXPECT_TRUE(rank.packets_are_empty());
}

}  // namespace
}  // namespace tokenyard::test
