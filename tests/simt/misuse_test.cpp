/// A kernel that breaks a rule of the vocabulary ends with an error that names both threads and
/// their source lines; the accelerator remains usable.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "device/device_array.hpp"
#include "device/wait_context_cell.hpp"
#include "simt/host_accelerator.hpp"
#include "simt/misuse.hpp"
#include "simt/misuse_kernels.hpp"
#include "simt/sanitizers.hpp"

namespace tokenyard::testing {

namespace {

using simt::Deadlock;
using simt::KernelMisuse;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

class Misuse : public ::testing::Test {
 protected:
  template <class Exception>
  std::string error_of(const Kernel<MisuseParams>& kernel, uint32_t warps = 1,
                       uint32_t blocks = 1) {
    try {
      launch(accelerator, kernel, {.blocks = blocks, .warps = warps}, {},
             {.memory = memory.data(), .wait_context = wait_context.wait_context});
    } catch (const Exception& error) {
      return error.what();
    }
    return "no error";
  }

  simt::HostAccelerator accelerator{[] {}};
  DeviceArray<uint32_t> memory{accelerator, 64};
  WaitContextCell wait_context{accelerator, std::chrono::milliseconds(20)};
};

TEST_F(Misuse, LanesThatMeetAtDifferentWords) {
  EXPECT_THAT(
      error_of<KernelMisuse>(different_words),
      AllOf(HasSubstr("rank 0 block 0 warp 0 lane 3"), HasSubstr("rank 0 block 0 warp 0 lane 0"),
            HasSubstr("warp::sum"), HasSubstr("warp::ballot"),
            ContainsRegex("lane 3 at misuse_kernels.hpp:[0-9]+ .*lane 0 at "
                          "misuse_kernels.hpp:[0-9]+")));
}

TEST_F(Misuse, LanesThatNameDifferentLanes) {
  EXPECT_THAT(error_of<KernelMisuse>(different_masks),
              AllOf(HasSubstr("warp::sync of lanes 0x0001ffff"), HasSubstr("0xffff8000"),
                    ContainsRegex("lane (1[6-9]|[23][0-9]) at .* lane 0 at")));
}

TEST_F(Misuse, LanesThatMeetAtDifferentPlaces) {
  EXPECT_THAT(error_of<KernelMisuse>(different_places),
              AllOf(HasSubstr("lane 8"), HasSubstr("lane 0"), HasSubstr("warp::shuffle")));
}

TEST_F(Misuse, ALaneThatLeavesItselfOut) {
  EXPECT_THAT(error_of<KernelMisuse>(leaves_itself_out),
              AllOf(HasSubstr("lane 5"), HasSubstr("do not include the caller")));
}

TEST_F(Misuse, ALaneNamedAfterItsEnd) {
  EXPECT_THAT(error_of<KernelMisuse>(names_an_ended_lane),
              AllOf(HasSubstr("lane 4"), HasSubstr("lane 0, which has ended")));
}

TEST_F(Misuse, ALaneThatEndsWhileOthersAwaitIt) {
  EXPECT_THAT(error_of<KernelMisuse>(ends_while_awaited),
              AllOf(HasSubstr("lane 31 ended"), HasSubstr("lane 0 at"), HasSubstr("warp::sync")));
}

TEST_F(Misuse, ThreadsThatCountABarrierDifferently) {
  EXPECT_THAT(error_of<KernelMisuse>(different_counts, 3),
              AllOf(HasSubstr("warp 1 lane 0"), HasSubstr("barrier 1 of 96 threads"),
                    HasSubstr("warp 0 lane 0"), HasSubstr("64 threads")));
}

TEST_F(Misuse, BarriersThatDoNotExist) {
  EXPECT_THAT(error_of<KernelMisuse>(odd_count, 3),
              AllOf(HasSubstr("barrier 1 of 40 threads"), HasSubstr("a multiple of 32")));
  EXPECT_THAT(error_of<KernelMisuse>(no_such_barrier, 2), HasSubstr("barriers 0 to 15, not 16"));
}

TEST_F(Misuse, AVoteWhereOthersOnlyMeet) {
  EXPECT_THAT(error_of<KernelMisuse>(vote_or_sync, 2),
              AllOf(HasSubstr("warp 1 lane"), HasSubstr("with a vote"), HasSubstr("warp 0 lane")));
}

TEST_F(Misuse, ABlockThatCannotMeetAnyMore) {
  EXPECT_THAT(error_of<KernelMisuse>(sync_after_an_end, 2),
              AllOf(HasSubstr("warp 1 lane"), HasSubstr("ended"), HasSubstr("warp 0 lane 0"),
                    HasSubstr("the block's barrier")));
}

TEST_F(Misuse, IsNotWhoArrivesAndEnds) {
  EXPECT_EQ(error_of<std::exception>(arrives_and_ends, 2), "no error");
  const auto values = memory.read();
  for (uint32_t i = 32; i < 64; ++i) EXPECT_EQ(values[i], i - 31);
}

TEST_F(Misuse, AccessesThatAreNotAligned) {
  EXPECT_THAT(
      error_of<KernelMisuse>(misaligned),
      AllOf(HasSubstr("8 bytes"), HasSubstr("misuse_kernels.hpp:"), HasSubstr("not aligned")));
  // A plain one, which a CPU would allow.
  EXPECT_THAT(
      error_of<KernelMisuse>(misaligned_vector),
      AllOf(HasSubstr("16 bytes"), HasSubstr("misuse_kernels.hpp:"), HasSubstr("not aligned")));
}

TEST_F(Misuse, CopiesAndCompletionsOutOfOrder) {
  EXPECT_THAT(error_of<KernelMisuse>(completion_without_init),
              AllOf(HasSubstr("before its init"), HasSubstr("misuse_kernels.hpp:")));
  EXPECT_THAT(error_of<KernelMisuse>(odd_copy), HasSubstr("a bulk copy of 24 bytes"));
}

TEST_F(Misuse, ADeadlockTellsWhatEachThreadAwaits) {
  const std::string report = error_of<Deadlock>(stuck_block, 2, 2);
  EXPECT_THAT(report, HasSubstr("rank 0 kernel stuck_block block 1 threads 0..31: barrier 0, 32 of "
                                "64 threads arrived at misuse_kernels.hpp:"));
  EXPECT_THAT(report,
              HasSubstr("rank 0 kernel stuck_block block 1 threads 32..63: barrier 1, 32 of "
                        "64 threads arrived at misuse_kernels.hpp:"));
  // Block 0 had a deadline and gave up; its wait report names what it waited for.
  EXPECT_THAT(report, ::testing::Not(HasSubstr("block 0")));
  EXPECT_EQ(wait_context.report().phase, 2u);
  EXPECT_EQ(wait_context.report().seen, 0u);
}

TEST_F(Misuse, AStackThatOverflowsIsAnError) {
#if TOKENYARD_ASAN
  GTEST_SKIP() << "AddressSanitizer notices by itself, and ends the program";
#endif
  EXPECT_THAT(error_of<InternalError>(digs_too_deep),
              AllOf(HasSubstr("rank 0 block 0 warp 0 lane "), HasSubstr("overflowed its stack")));
}

TEST_F(Misuse, LeavesTheAcceleratorUsable) {
  error_of<KernelMisuse>(different_words);
  error_of<Deadlock>(stuck_block, 2, 2);
  EXPECT_EQ(error_of<std::exception>(arrives_and_ends, 2), "no error");
  EXPECT_EQ(memory.read()[63], 32u);
}

}  // namespace

}  // namespace tokenyard::testing
