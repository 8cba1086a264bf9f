// Suite `job`: some of its seeds, and deliberate bugs that it must notice.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "job/simulated/exchanging_job.hpp"

namespace tokenyard::job_test {
namespace {

using Seeds = std::vector<uint64_t>;

Seeds first(size_t count) {
  Seeds seeds(count);
  std::iota(seeds.begin(), seeds.end(), 1);
  return seeds;
}

/// In these, a rank that has lost another one ends its world while a third waits for it in a call
/// of low latency, whose deadline is far.
const Seeds kWaitInAWorldThatAnotherHasLeft = {612, 20486, 22094, 22355};

/// Returns the failure of the first of these seeds that reveals the bug; empty if none does.
std::string caught(const Mutations& mutations, const Seeds& seeds) {
  for (const uint64_t seed : seeds) {
    simulation::Trace trace;
    simulation::SeedRun run(seed, trace, nullptr);
    try {
      ExchangingJob(run, mutations).live();
    } catch (const std::exception& error) {
      return fmt::format("seed {}: {}", seed, error.what());
    }
  }
  return "";
}

TEST(JobMutants, NothingIsCaughtWithoutOne) {
  EXPECT_EQ(caught({}, first(30)), "");
  EXPECT_EQ(caught({}, kWaitInAWorldThatAnotherHasLeft), "");
}

struct Bug {
  const char* name;
  Mutations mutations;
  const char* noticed_by;  ///< a part of the report
  Seeds seeds = first(100);
};

void PrintTo(const Bug& bug, std::ostream* out) {
  *out << bug.name;
}

class JobMutants : public ::testing::TestWithParam<Bug> {};

TEST_P(JobMutants, AreCaught) {
  const std::string how = caught(GetParam().mutations, GetParam().seeds);
  EXPECT_NE(how.find(GetParam().noticed_by), std::string::npos) << how;
  fmt::print("{}\n", how);
}

INSTANTIATE_TEST_SUITE_P(
    Each, JobMutants,
    ::testing::Values(
        Bug{"ArenaReused", {.job = Mutant::arena_reused}, "arena of rank"},
        Bug{"PlainLastBarrier", {.world = WorldMutant::plain_last_barrier}, "worlds: "},
        Bug{"EndNotTold",
            {.world = WorldMutant::end_not_told},
            "recovery: ",
            kWaitInAWorldThatAnotherHasLeft},
        Bug{"OthersNotFollowed", {.world = WorldMutant::others_not_followed}, "recovery: "},
        Bug{"GoesOnFromLast", {.job = Mutant::goes_on_from_last}, "calls: "},
        Bug{"OwnCountTrusted", {.job = Mutant::own_count_trusted}, "calls: "},
        Bug{"LossesNotTold", {.job = Mutant::losses_not_told}, "recovery: "},
        Bug{"VerdictsNotTold", {.job = Mutant::verdicts_not_told}, "recovery: "}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace tokenyard::job_test
