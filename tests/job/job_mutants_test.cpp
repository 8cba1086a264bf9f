// Suite `job`: some of its seeds, and deliberate bugs that it must notice.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "job/simulated/exchanging_job.hpp"

namespace tokenyard::job_test {
namespace {

/// Returns the failure of the first of these seeds that reveals the bug; empty if none does.
std::string caught(const Mutations& mutations, uint64_t seeds, uint64_t first = 1) {
  for (uint64_t seed = first; seed < first + seeds; ++seed) {
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
  EXPECT_EQ(caught({}, 30), "");
}

struct Bug {
  const char* name;
  Mutations mutations;
  const char* noticed_by;  ///< a part of the report
  uint64_t first = 1;      ///< seed
};

void PrintTo(const Bug& bug, std::ostream* out) {
  *out << bug.name;
}

class JobMutants : public ::testing::TestWithParam<Bug> {};

TEST_P(JobMutants, AreCaught) {
  const std::string how = caught(GetParam().mutations, 100, GetParam().first);
  EXPECT_NE(how.find(GetParam().noticed_by), std::string::npos) << how;
  fmt::print("{}\n", how);
}

INSTANTIATE_TEST_SUITE_P(
    Each, JobMutants,
    ::testing::Values(
        Bug{"ArenaReused", {.job = Mutant::arena_reused}, "arena of rank"},
        Bug{"PlainLastBarrier", {.world = WorldMutant::plain_last_barrier}, "worlds: "},
        Bug{"GoesOnFromLast", {.job = Mutant::goes_on_from_last}, "calls: ", 56},
        Bug{"OwnCountTrusted", {.job = Mutant::own_count_trusted}, "calls: ", 56},
        Bug{"RowsOfBefore", {.job = Mutant::rows_of_before}, "rows: "},
        Bug{"LossesNotTold", {.job = Mutant::losses_not_told}, "recovery: "},
        Bug{"VerdictsNotTold", {.job = Mutant::verdicts_not_told}, "recovery: "}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace tokenyard::job_test
