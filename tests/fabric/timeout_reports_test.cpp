#include "fabric/timeout_reports.hpp"

#include <gtest/gtest.h>

namespace tokenyard {
namespace {

using Ranks = std::set<uint32_t>;

TEST(TimeoutReports, TheEndOfAChainIsNamed) {
  TimeoutReports told;
  const uint64_t object = told.new_object();
  EXPECT_EQ(told.end_of_chain(object, 2), 2u);
  told.note(object, 2, 1);
  told.note(object, 1, 4);
  for (const uint32_t named : {1u, 2u, 4u}) EXPECT_EQ(told.end_of_chain(object, named), 4u);
  EXPECT_EQ(told.end_of_chain(object, 3), 3u);
}

TEST(TimeoutReports, ACircleHasNoEnd) {
  TimeoutReports told;
  const uint64_t object = told.new_object();
  told.note(object, 0, 1);
  told.note(object, 1, 0);
  told.note(object, 2, 2);  // Nobody waits for itself.
  for (const uint32_t named : {0u, 1u, 2u}) EXPECT_EQ(told.end_of_chain(object, named), named);
  told.note(object, 3, 0);
  EXPECT_EQ(told.end_of_chain(object, 3), 3u) << "its report leads to a circle";
}

/// A call fails once: what a rank says later is of no account.
TEST(TimeoutReports, OfOneObjectTheFirstReportCounts) {
  TimeoutReports told;
  const uint64_t one = told.new_object(), other = told.new_object();
  EXPECT_NE(one, other);
  told.note(one, 0, 1);
  told.note(one, 0, 2);
  told.note(other, 0, 3);
  EXPECT_EQ(told.end_of_chain(one, 0), 1u);
  EXPECT_EQ(told.end_of_chain(other, 0), 3u);
}

TEST(TimeoutReports, AreCompleteOnceOneRankAloneIsSilent) {
  TimeoutReports told;
  const uint64_t object = told.new_object();
  const Ranks all{0, 1, 2, 3};
  EXPECT_FALSE(told.are_complete(object, all));
  told.note(object, 0, 3);
  told.note(object, 1, 0);
  EXPECT_FALSE(told.are_complete(object, all)) << "rank 2 may still say for whom it waits";
  EXPECT_TRUE(told.are_complete(object, {0, 1, 3})) << "rank 2 is gone";
  told.note(object, 2, 1);
  EXPECT_TRUE(told.are_complete(object, all));
}

}  // namespace
}  // namespace tokenyard
