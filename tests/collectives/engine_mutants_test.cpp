// Deliberate bugs of the engine and of the parts around it, one at a time: the simulator must
// notice each within several hundred seeds.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "collectives/simulated/disaster.hpp"
#include "collectives/simulated/with_engine.hpp"

namespace tokenyard::collectives::simulated {
namespace {

constexpr uint64_t kSeeds = 800;

/// Returns the failure of the first seed that reveals the bug; empty if none does.
std::string caught(EngineMutations mutations) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    simulation::Trace trace;
    simulation::SeedRun run(seed, trace, nullptr);
    try {
      Disaster(run, {}, with_engine(mutations)).happen();
    } catch (const std::exception& error) {
      return fmt::format("seed {}: {}", seed, error.what());
    }
  }
  return "";
}

struct Case {
  const char* name;
  EngineMutations mutations;
};
void PrintTo(const Case& one, std::ostream* to) {
  *to << one.name;
}

class EngineMutants : public testing::TestWithParam<Case> {};
TEST_P(EngineMutants, AreCaught) {
  const std::string how = caught(GetParam().mutations);
  EXPECT_NE(how, "");
  fmt::print("{}\n", how);
}

INSTANTIATE_TEST_SUITE_P(
    Simulated, EngineMutants,
    testing::Values(Case{"round_skipped", {.engine = EngineMutant::round_skipped}},
                    Case{"commits_while_frozen", {.engine = EngineMutant::commits_while_frozen}},
                    Case{"undo_forgotten", {.engine = EngineMutant::undo_forgotten}},
                    Case{"verdict_not_followed", {.engine = EngineMutant::verdict_not_followed}},
                    Case{"successors_not_awaited",
                         {.engine = EngineMutant::successors_not_awaited}},
                    Case{"fence_ignored", {.engine = EngineMutant::fence_ignored}},
                    Case{"recovering_ignored", {.engine = EngineMutant::recovering_ignored}},
                    Case{"forgotten_when_closed", {.engine = EngineMutant::forgotten_when_closed}},
                    Case{"foundings_not_counted", {.engine = EngineMutant::foundings_not_counted}},
                    Case{"stale_bytes_accepted", {.program = ProgramMutant::stale_bytes_accepted}},
                    Case{"shrinks_alone", {.program = ProgramMutant::shrinks_alone}}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(EngineWithoutMutants, NothingIsCaught) {
  EXPECT_EQ(caught({}), "");
}

}  // namespace
}  // namespace tokenyard::collectives::simulated
