// The checkers of suite `job` themselves.
#include "job/simulated/world_checkers.hpp"

#include <gtest/gtest.h>

namespace tokenyard::job_test {
namespace {

using collectives::simulated::Broken;

const Member kFirst{.slot = 0, .incarnation = 1}, kSecond{.slot = 1, .incarnation = 1};
const View kBoth{.epoch = 1, .slots = 2, .members = {kFirst, kSecond}};
const View kFirstAlone{.epoch = 2, .slots = 2, .members = {kFirst}};

TEST(WorldChecker, MissesAWorldThatAMemberHas) {
  WorldChecker worlds;
  worlds.made(kSecond, 1, {0, 1}, kBoth, kBoth);
  EXPECT_THROW(worlds.at_the_end({kFirst}), Broken);
  worlds.made(kFirst, 1, {0, 1}, kBoth, kBoth);
  worlds.at_the_end({kFirst});
}

// Its members had agreed on the next epoch, and one link of the second had ended, when the last
// message of the first came.
TEST(WorldChecker, LetsOneThatIsOutHaveAWorldAlone) {
  WorldChecker worlds;
  worlds.made(kSecond, 1, {0, 1}, kBoth, kFirstAlone);
  worlds.at_the_end({kFirst});
}

}  // namespace
}  // namespace tokenyard::job_test
