/// Ranks of one process that share a GPU.
#include "device/cuda/shared_gpu.hpp"

#include <gtest/gtest.h>

#include <exception>
#include <thread>

#include "device/device_array.hpp"
#include "device/meeting_kernels.hpp"
#include "device/wait_context_cell.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard::testing {

namespace {

using cuda::SharedGpu;
using cuda::SharedGpuAccelerator;

class SharedGpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda::gpu_count() == 0) GTEST_SKIP() << "no GPU here";
  }

  void make_ranks(uint32_t ranks, std::chrono::milliseconds timeout = std::chrono::seconds(20)) {
    gpu = std::make_shared<SharedGpu>(0, timeout);
    for (uint32_t rank = 0; rank < ranks; ++rank)
      accelerators.push_back(std::make_unique<SharedGpuAccelerator>(gpu, rank, [] {}));
  }

  /// Runs `body` for all ranks at once. Returns each rank's exception; null if it threw none.
  std::vector<std::exception_ptr> on_every_rank(const std::function<void(uint32_t rank)>& body) {
    std::vector<std::exception_ptr> outcomes(accelerators.size());
    std::vector<std::jthread> threads;
    for (uint32_t rank = 0; rank < accelerators.size(); ++rank)
      threads.emplace_back([&, rank] {
        try {
          body(rank);
        } catch (...) {
          outcomes[rank] = std::current_exception();
        }
      });
    threads.clear();
    return outcomes;
  }

  std::shared_ptr<SharedGpu> gpu;
  std::vector<std::unique_ptr<SharedGpuAccelerator>> accelerators;
};

template <class E>
E error_of(const std::exception_ptr& outcome) {
  if (!outcome) throw std::logic_error("nothing was thrown");
  try {
    std::rethrow_exception(outcome);
  } catch (const E& error) {
    return error;
  }
}

TEST_F(SharedGpuTest, KernelsOfAllRanksMeet) {
  constexpr uint32_t kRanks = 3, kBlocks = 4, kRounds = 20;
  make_ranks(kRanks);
  DeviceArray<uint32_t> arrived(*accelerators[0], 1);
  const auto outcomes = on_every_rank([&](uint32_t rank) {
    Accelerator& mine = *accelerators[rank];
    WaitContextCell wait_context(mine, std::chrono::seconds(10));
    DeviceArray<uint32_t> met(mine, kBlocks);
    const Stream stream = mine.make_stream();
    for (uint32_t round = 1; round <= kRounds; ++round)
      launch(mine, meeting_kernel, {.blocks = kBlocks, .warps = 2}, stream,
             {.wait_context = wait_context.wait_context,
              .arrived = arrived.data(),
              .expected = round * kRanks * kBlocks,
              .rank = rank,
              .met = met.data()});
    drain(mine, stream);
    EXPECT_EQ(met.read(), std::vector<uint32_t>(kBlocks, rank + 1));
    mine.free_stream(stream);
  });
  for (const auto& outcome : outcomes) EXPECT_FALSE(outcome);
}

TEST_F(SharedGpuTest, DifferentKernelsAreRefusedOnAllRanks) {
  make_ranks(2);
  const auto outcomes = on_every_rank([&](uint32_t rank) {
    launch(*accelerators[rank], rank == 0 ? meeting_kernel : idle_kernel, {}, {}, {});
  });
  for (const auto& outcome : outcomes) {
    const std::string text = error_of<InvalidArgument>(outcome).what();
    EXPECT_NE(text.find("meeting_kernel"), std::string::npos) << text;
    EXPECT_NE(text.find("idle_kernel"), std::string::npos) << text;
  }
}

TEST_F(SharedGpuTest, DifferentShapesAreRefusedOnAllRanks) {
  make_ranks(2);
  const auto outcomes = on_every_rank([&](uint32_t rank) {
    launch(*accelerators[rank], idle_kernel, {.blocks = 1 + rank}, {}, {});
  });
  for (const auto& outcome : outcomes)
    EXPECT_EQ(error_of<InvalidArgument>(outcome).argument, "shape");
}

TEST_F(SharedGpuTest, ARankThatDoesNotLaunchIsNamed) {
  make_ranks(3, std::chrono::milliseconds(200));
  const auto outcomes = on_every_rank([&](uint32_t rank) {
    if (rank != 1) launch(*accelerators[rank], idle_kernel, {}, {}, {});
  });
  EXPECT_FALSE(outcomes[1]);
  for (const uint32_t rank : {0, 2}) {
    const WaitFacts facts = error_of<PeerTimeout>(outcomes[rank]).facts;
    EXPECT_EQ(facts.rank, 1u);
    EXPECT_EQ(facts.phase, "launch: idle_kernel");
  }
}

TEST_F(SharedGpuTest, ARankThatLeavesIsNotWaitedFor) {
  make_ranks(2);
  const auto outcomes = on_every_rank([&](uint32_t rank) {
    if (rank == 1) {
      accelerators[1].reset();
      return;
    }
    launch(*accelerators[0], idle_kernel, {}, {}, {});
    drain(*accelerators[0]);
  });
  EXPECT_FALSE(outcomes[0]);
}

TEST_F(SharedGpuTest, BlocksThatCannotBeResidentTogetherAreRefused) {
  make_ranks(2);
  const Capacity capacity = accelerators[0]->capacity();
  const LaunchShape shape{.blocks = capacity.multiprocessors + 1,
                          .extra_shared_bytes = capacity.shared_bytes - 2048};
  const auto outcomes = on_every_rank(
      [&](uint32_t rank) { launch(*accelerators[rank], idle_kernel, shape, {}, {}); });
  for (const auto& outcome : outcomes)
    EXPECT_EQ(error_of<InvalidArgument>(outcome).argument, "blocks");
}

}  // namespace

}  // namespace tokenyard::testing
