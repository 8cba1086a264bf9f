/// A sweep notices a state that no seed reaches any more.
#include "simulation/reached_states.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tokenyard::simulation {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(ReachedStates, MustBeReachedByOneOfEnoughSeeds) {
  Suite suite;
  suite.reaches = {{"often", 2}, {"rarely", 4}};
  ReachedStates states(suite);
  for (uint32_t seed = 0; seed < 3; ++seed) states.add({"often"});
  EXPECT_THAT(states.faults(), IsEmpty());
  states.add({});
  EXPECT_THAT(states.faults(), ElementsAre(HasSubstr("none of 4 seeds reaches \"rarely\"")));
  EXPECT_THAT(states.text(), HasSubstr("3 of 4 seeds reach: often\n"));
  states.add({"often", "rarely"});
  EXPECT_THAT(states.faults(), IsEmpty());
}

TEST(ReachedStates, MustBeListed) {
  const Suite suite;
  ReachedStates states(suite);
  states.add({"misspelt"});
  EXPECT_THAT(states.faults(), ElementsAre(HasSubstr("\"misspelt\" is reached and not listed")));
}

}  // namespace
}  // namespace tokenyard::simulation
