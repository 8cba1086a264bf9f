/// The rank of every expert, against a count from rank to rank.
#include "expert_parallel/common/expert_partition.hpp"

#include <gtest/gtest.h>

namespace tokenyard::test {
namespace {

TEST(ExpertPartition, EveryExpertHasItsRankForEveryNumberOfBoth) {
  for (const uint32_t ranks : {1u, 2u, 3u, 5u, 7u, 24u, 48u, 72u, 96u})
    for (const uint32_t experts : {1u, 2u, 8u, 23u, 95u, 96u, 255u, 256u, 257u, 4097u, 65'535u}) {
      SCOPED_TRACE(testing::Message() << experts << " experts on " << ranks << " ranks");
      const ExpertPartition partition = ExpertPartition::of(experts, ranks);
      ASSERT_EQ(partition.even(), experts % ranks == 0);
      uint32_t expert = 0, most = 0;
      for (uint32_t rank = 0; rank < ranks; ++rank) {
        ASSERT_EQ(partition.first_of(rank), expert);
        const uint32_t held = experts / ranks + (rank < experts % ranks ? 1 : 0);
        ASSERT_EQ(partition.held_by(rank), held);
        most = std::max(most, held);
        for (uint32_t local = 0; local < held; ++local, ++expert) {
          ASSERT_EQ(partition.rank_of(expert), rank) << expert;
        }
      }
      ASSERT_EQ(expert, experts);
      ASSERT_EQ(partition.held_at_most(), most);
    }
}

}  // namespace
}  // namespace tokenyard::test
