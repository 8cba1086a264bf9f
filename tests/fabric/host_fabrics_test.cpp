/// A setup step that fails on one rank fails on all ranks of a host at once, and may be retried.
#include <gtest/gtest.h>
#include <signal.h>

#include <cerrno>
#include <functional>
#include <limits>
#include <optional>

#include "collectives/resource_limit.hpp"
#include "fabric/host/in_process_fabric.hpp"
#include "fabric/host/process_fabric.hpp"
#include "fabric/in_process_mesh.hpp"
#include "fabric/manual_accelerator.hpp"
#include "fabric/ranks.hpp"
#include "fabric/worlds.hpp"

namespace tokenyard {
namespace {

using collectives::ResourceLimit;

constexpr uint32_t kRanks = 3;
constexpr size_t kArenaBytes = 1 << 20;
/// A timeout that no wait of these tests reaches.
constexpr std::chrono::seconds kLong{60};

void expect_of_rank_1(const std::exception_ptr& failure, const std::string& call, int code) {
  EXPECT_TRUE(holds<OsError>(failure, [&](const OsError& error) {
    EXPECT_EQ(error.call, call + " on rank 1");
    EXPECT_EQ(error.code, code);
  }));
}

/// Rank 1 requests more memory than exists: a negative number of bytes, as some calls read it.
void prepare_too_much(Fabric& fabric, const std::string& call, int code) {
  const auto ends = InProcessMesh::make(kRanks);
  const auto failures = run_ranks(kRanks, [&](uint32_t rank) {
    ManualAccelerator accelerator;
    AbortFlag abort_flag(accelerator);
    Bootstrap talk(ends[rank], Membership::of(*ends[rank]), accelerator, abort_flag);
    const size_t bytes = rank == 1 ? std::numeric_limits<size_t>::max() : kArenaBytes;
    (void)fabric.prepare(talk, {.arena_bytes = bytes, .host_of = {0, 0, 0}, .timeout = kLong},
                         accelerator.now() + kLong);
  });
  for (const auto& failure : failures) expect_of_rank_1(failure, call, code);
}

TEST(ProcessFabric, AnArenaThatOneRankCannotHaveFailsOnAll) {
  ProcessFabric fabric;
  prepare_too_much(fabric, "ftruncate of tokenyard-arena to 18446744073709551615 bytes", EINVAL);
}

TEST(InProcessFabric, AnArenaThatOneRankCannotHaveFailsOnAll) {
  InProcessFabric fabric(1);
  prepare_too_much(fabric, "mmap of 18446744073709551615 bytes", ENOMEM);
}

/// Rebuilds a world of processes while rank 1 lacks a resource, and again once it has it.
void rebuild_under_a_limit(const std::function<void(std::optional<ResourceLimit>&)>& tighten,
                           const std::string& call, int code) {
  signal(SIGXFSZ,
         SIG_IGN);  // As Python does, so that the call fails instead of killing the process.
  run_processes("host", kRanks, {.timeout = kLong, .arena_bytes = kArenaBytes}, [&](World& world) {
    const Clock::time_point start = Clock::now();
    for (int time = 0; time < 2; ++time) {
      std::optional<ResourceLimit> limit;
      if (world.rank() == 1) tighten(limit);
      std::exception_ptr failure;
      try {
        (void)world.rebuild({});
      } catch (...) {
        failure = std::current_exception();
      }
      expect_of_rank_1(failure, call, code);
    }
    const auto whole = world.rebuild({});
    whole->barrier("it works");
    EXPECT_LT(Clock::now() - start, kLong);
    if (::testing::Test::HasFailure()) throw std::runtime_error("an expectation above failed");
  });
}

TEST(ProcessFabric, AWorldIsRebuiltOnceThereIsMemory) {
  rebuild_under_a_limit([](auto& limit) { limit.emplace(RLIMIT_FSIZE, kArenaBytes / 2); },
                        "ftruncate of tokenyard-arena to 1048576 bytes", EFBIG);
}

/// The rank is on the same host as the others, but cannot read its boot id.
TEST(ProcessFabric, ARankWithoutDescriptorsIsNotTakenForOneOfAnotherHost) {
  rebuild_under_a_limit(
      [](auto& limit) { limit.emplace(RLIMIT_NOFILE, collectives::no_more_descriptors()); },
      "open of /proc/sys/kernel/random/boot_id", EMFILE);
}

}  // namespace
}  // namespace tokenyard
