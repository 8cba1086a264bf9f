/// Launches of ranks that share a device. The interrupt that a waiting launch calls plays the other
/// ranks, so that nothing here depends on time.
#include "device/joint_launches.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

namespace tokenyard {

namespace {

using Gathering = JointLaunches::Gathering;
using Ranks = std::vector<uint32_t>;

class JointLaunchesTest : public ::testing::Test {
 protected:
  static KernelEntry kernel(const char* name) {
    KernelEntry entry{};
    entry.name = name;
    entry.params_bytes = sizeof(uint32_t);
    return entry;
  }

  void launch(
      uint32_t rank, const std::function<void()>& interrupt = [] {}, const char* name = "kernel",
      uint32_t blocks = 1) {
    launches.launch(rank, kernel(name), {.blocks = blocks}, Stream{}, &rank, interrupt);
  }

  std::vector<Ranks> launched;  ///< the ranks of each launch, by their parameters
  JointLaunches launches{std::chrono::seconds(60), [this](const Gathering& gathering) {
                           Ranks& ranks = launched.emplace_back();
                           for (const auto& [rank, part] : gathering.parts) {
                             EXPECT_EQ(part.params.size(), sizeof rank);
                             ranks.push_back(rank);
                           }
                         }};
};

TEST_F(JointLaunchesTest, AreOneOnceAllHaveCome) {
  for (const uint32_t rank : {0u, 1u, 2u}) launches.enter(rank);
  launch(2, [this] { launch(0, [this] { launch(1); }); });
  EXPECT_EQ(launched, std::vector<Ranks>({{0, 1, 2}}));
}

TEST_F(JointLaunchesTest, GoOnWithoutARankThatRetires) {
  for (const uint32_t rank : {0u, 1u}) launches.enter(rank);
  launch(0, [this] { launches.retire(1); });
  launch(0);
  EXPECT_EQ(launched, std::vector<Ranks>({{0}, {0}}));
  EXPECT_EQ(launches.ranks(), 2u) << "shapes must stay alike";
}

TEST_F(JointLaunchesTest, OfARetiredRankAreCancelledAndThoseOfOthersAreNot) {
  for (const uint32_t rank : {0u, 1u, 2u}) launches.enter(rank);
  launch(1, [this] {
    EXPECT_THROW(launch(0, [this] { launches.retire(0); }), Cancelled);
    launch(2);
  });
  EXPECT_EQ(launched, std::vector<Ranks>({{1, 2}}));
  EXPECT_THROW(launch(0), Cancelled);
}

TEST_F(JointLaunchesTest, NameARankThatDoesNotCome) {
  JointLaunches impatient(std::chrono::nanoseconds(1), [](const Gathering&) { FAIL(); });
  for (const uint32_t rank : {0u, 1u, 2u}) impatient.enter(rank);
  impatient.retire(1);
  try {
    const uint32_t params = 0;
    impatient.launch(0, kernel("kernel"), {}, Stream{}, &params, [] {});
    FAIL() << "nothing was thrown";
  } catch (const PeerTimeout& error) {
    EXPECT_EQ(error.facts.rank, 2u);
    EXPECT_EQ(error.facts.phase, "launch: kernel");
  }
}

TEST_F(JointLaunchesTest, ThatDifferFailOnAllRanks) {
  for (const uint32_t rank : {0u, 1u}) launches.enter(rank);
  const auto other_kernel = [this] {
    EXPECT_THROW(launch(
                     1, [] {}, "another"),
                 InvalidArgument);
  };
  EXPECT_THROW(launch(0, other_kernel), InvalidArgument);
  const auto other_shape = [this] {
    EXPECT_THROW(launch(
                     1, [] {}, "kernel", 2),
                 InvalidArgument);
  };
  EXPECT_THROW(launch(0, other_shape), InvalidArgument);
  EXPECT_TRUE(launched.empty());
}

}  // namespace

}  // namespace tokenyard
