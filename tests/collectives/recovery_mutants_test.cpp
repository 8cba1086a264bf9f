// Suite `recovery`: some of its seeds, and deliberate bugs that it must notice.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "collectives/simulated/drill.hpp"

namespace tokenyard::collectives::simulated {
namespace {

constexpr uint64_t kSeeds = 150;

/// Returns the failure of the first seed that reveals the bug; empty if none does.
std::string caught(const DrillMutations& mutations) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    simulation::Trace trace;
    simulation::SeedRun run(seed, trace, nullptr);
    try {
      Drill(run, mutations).happen();
    } catch (const std::exception& error) {
      return fmt::format("seed {}: {}", seed, error.what());
    }
  }
  return "";
}

TEST(RecoveryMutants, NothingIsCaughtWithoutOne) {
  EXPECT_EQ(caught({}), "");
}

// Once documented: a rank that comes when nobody is missing any more calls nothing.
TEST(RecoveryMutants, ReplacingOnlyThoseWhoAreMissingIsCaught) {
  const std::string how = caught({.ways = {GoesOnBy::replace_missing}});
  EXPECT_NE(how, "");
  fmt::print("{}\n", how);
}

// A late call lets a second spare take the slot of the first, which lives.
TEST(RecoveryMutants, AWishThatComesLateIsCaught) {
  const std::string how = caught({.protocol = membership::Mutant::wishes_never_late});
  EXPECT_NE(how, "");
  fmt::print("{}\n", how);
}

}  // namespace
}  // namespace tokenyard::collectives::simulated
