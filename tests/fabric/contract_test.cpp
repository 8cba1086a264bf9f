#include "fabric/contract.hpp"

#include <gtest/gtest.h>

#include "fabric/meeting_place.hpp"
#include "fabric/worlds.hpp"

namespace tokenyard::testing {
namespace {

bool gpus_are_here() {
  try {
    (void)World::in_process(1, "cuda", {.arena_bytes = 1 << 20});
    return true;
  } catch (const Error&) {
    return false;
  }
}

const WorldKind kThreads{"threads",
                         [](uint32_t ranks, const WorldOptions& options, const Program& program) {
                           run_threads("host", ranks, options, program);
                         }};
const WorldKind kProcesses{"processes",
                           [](uint32_t ranks, const WorldOptions& options, const Program& program) {
                             run_processes("host", ranks, options, program);
                           }};
const WorldKind kGpus{"gpus",
                      [](uint32_t ranks, const WorldOptions& options, const Program& program) {
                        if (!gpus_are_here()) GTEST_SKIP() << "no GPU here";
                        run_threads("cuda", ranks, options, program);
                      }};

class Contract : public ::testing::TestWithParam<const WorldKind*> {
 protected:
  void run(uint32_t ranks, const Program& program) {
    WorldOptions options;
    options.timeout = std::chrono::seconds(30);
    options.arena_bytes = 4 << 20;
    GetParam()->run(ranks, options, program);
  }
};

TEST_P(Contract, StoresPutsAndSignalsArriveInOrder) {
  for (const uint32_t ranks : {1u, 2u, 3u}) {
    run(ranks, [](World& world) { keeps_order(world, 12); });
  }
}

TEST_P(Contract, AWaitForNobodyNamesThem) {
  run(3, names_the_absent);
}

TEST_P(Contract, CancelEndsEveryWait) {
  run(2, can_be_cancelled);
}

TEST_P(Contract, TheTopologyTellsWhoIsReached) {
  run(3, tells_who_is_reached);
}

TEST_P(Contract, SurvivorsRebuild) {
  run(3, can_be_rebuilt);
}

TEST_P(Contract, WorldsLeaveAndNewOnesCome) {
  for (int round = 0; round < 3; ++round) {
    run(2, [](World& world) { keeps_order(world, 1); });
  }
}

INSTANTIATE_TEST_SUITE_P(Fabrics, Contract, ::testing::Values(&kThreads, &kProcesses, &kGpus),
                         [](const auto& kind) { return kind.param->name; });

/// Two worlds in one process do not affect each other.
TEST(TwoWorlds, WorkSideBySide) {
  on_every_rank(2, [](uint32_t which) {
    const WorldOptions options{.arena_bytes = 1 << 20};
    run_threads("host", 2 + which, options, [](World& world) { keeps_order(world, 5); });
  });
}

TEST(WorldArguments, AreCheckedBeforeAnythingHappens) {
  EXPECT_THROW((void)World::in_process(0, "host"), InvalidArgument);
  EXPECT_THROW((void)World::in_process(1, "abacus"), InvalidArgument);
  EXPECT_THROW((void)World::in_process(1, "host", {.arena_bytes = 1}), InvalidArgument);
  EXPECT_THROW((void)World::in_process(1, "host", {.timeout = std::chrono::seconds(0)}),
               InvalidArgument);
  EXPECT_THROW((void)connect_world({.size = 1}, "host", {.hosts = 2}), InvalidArgument);
}

}  // namespace
}  // namespace tokenyard::testing
