// Bulk copies in the memory model: their timing, their completion, and the misuses reported.

#include <gmock/gmock.h>

#include "simulation/model_memory_fixture.hpp"

namespace tokenyard::simulation {
namespace {

using testing::HasSubstr;

class BulkCopies : public ModelMemoryTest {
 protected:
  const ThreadName& issuer() { return name(0, 0, 0); }
  void* completion() { return shared(0, 0, 32); }

  void store_row() {
    memory_->bulk_store(issuer(), word(1, 0), shared(0, 0, 0), 32, line(10));
    memory_->bulk_commit(issuer(), line(11));
  }
  void wait(bool sources_only) {
    for (int tries = 0; !memory_->bulk_wait(issuer(), 0, sources_only, line(12)); ++tries) {
      ASSERT_LT(tries, 100);
      memory_->step_when_idle();
    }
  }
  void init(uint32_t arrivals = 1) {
    memory_->completion_init(issuer(), completion(), arrivals, line(13));
    memory_->fence_async(issuer(), line(14));
  }
  void load_row() {
    memory_->completion_arrive(issuer(), completion(), 32, line(15));
    memory_->bulk_load(issuer(), shared(0, 0, 0), word(0, 0), 32, completion(), line(16));
  }
  bool done(uint32_t parity) {
    return memory_->completion_done(issuer(), completion(), parity, line(17));
  }
};

TEST_F(BulkCopies, AStoreArrivesOnceAwaitedAndIsPublishedByARelease) {
  plain_store(issuer(), shared(0, 0, 3), 7);
  memory_->fence_async(issuer(), line(14));
  store_row();
  EXPECT_EQ(*word(1, 3), 0u);
  wait(false);
  store(issuer(), word(1, 16), 1, Order::release);
  load(reader(), word(1, 16), Order::acquire);
  EXPECT_EQ(plain_load(reader(), word(1, 3)), 7u);
  end(0);
  EXPECT_EQ(found(), "");
}

TEST_F(BulkCopies, WithoutTheProxyFenceTheCopyRacesWithItsSource) {
  plain_store(issuer(), shared(0, 0, 3), 7);
  store_row();
  EXPECT_THAT(found(), HasSubstr("no fence_async on the way"));
}

TEST_F(BulkCopies, AFenceInTheReaderOfABarrierWillDoToo) {
  plain_store(name(0, 0, 1), shared(0, 0, 3), 7);
  meet(0, 0);
  memory_->fence_async(issuer(), line(14));
  store_row();
  EXPECT_EQ(found(), "");
}

TEST_F(BulkCopies, AReleaseThatDoesNotAwaitTheStoreIsARace) {
  memory_->fence_async(issuer(), line(14));
  store_row();
  wait(true);
  store(issuer(), word(1, 16), 1, Order::release);
  load(reader(), word(1, 16), Order::acquire);
  plain_load(reader(), word(1, 3));
  EXPECT_THAT(found(), HasSubstr("bulk copy's write by bulk stores of thread 0"));
}

TEST_F(BulkCopies, TheSourceMayBeOverwrittenOnlyAfterWaitRead) {
  memory_->fence_async(issuer(), line(14));
  store_row();
  plain_store(issuer(), shared(0, 0, 3), 8);
  EXPECT_THAT(found(), HasSubstr("bulk copy's read by bulk stores of thread 0"));
}

TEST_F(BulkCopies, AfterWaitReadTheSourceIsFree) {
  store_row();
  wait(true);
  plain_store(issuer(), shared(0, 0, 3), 8);
  EXPECT_EQ(found(), "");
}

TEST_F(BulkCopies, AThreadThatEndsBeforeItsSourcesAreReadIsReported) {
  store_row();
  memory_->thread_ends(issuer());
  EXPECT_THAT(found(), HasSubstr("ends before bulk stores have read their sources"));
}

TEST_F(BulkCopies, ALoadIsSeenOnceItsPhaseHasEnded) {
  plain_store(issuer(), word(0, 2), 9);
  init();
  load_row();
  EXPECT_FALSE(done(0));
  while (memory_->step_when_idle()) {
  }
  EXPECT_TRUE(done(0));
  EXPECT_EQ(plain_load(issuer(), shared(0, 0, 2)), 9u);
  end(0);
  EXPECT_EQ(found(), "");
}

TEST_F(BulkCopies, ACompletionMustCrossTheProxiesBeforeALoadIsAnnouncedToIt) {
  memory_->completion_init(issuer(), completion(), 1, line(13));
  load_row();
  EXPECT_THAT(found(), HasSubstr("no fence_async on the way"));
}

TEST_F(BulkCopies, ReadingBeforeThePhaseEndsIsARace) {
  init();
  load_row();
  plain_load(issuer(), shared(0, 0, 2));
  EXPECT_THAT(found(), HasSubstr("bulk copy's write by bulk loads in block 0"));
}

TEST_F(BulkCopies, OneMayReloadAndStoreWhatWasLoaded) {
  init();
  for (uint32_t phase = 0; phase < 4; ++phase) {
    load_row();
    while (!done(phase & 1)) memory_->step_when_idle();
    store_row();
    wait(false);
  }
  end(0);
  EXPECT_EQ(found(), "");
}

TEST_F(BulkCopies, MisusesOfACompletionAreReported) {
  load_row();
  EXPECT_THAT(found(), HasSubstr("never initialised"));
  init();
  init();
  EXPECT_THAT(found(), HasSubstr("in use"));
  memory_->completion_arrive(issuer(), completion(), 16, line(20));
  memory_->completion_arrive(issuer(), completion(), 16, line(21));
  EXPECT_THAT(found(), HasSubstr("more than 1 arrivals in phase 0"));
}

TEST_F(BulkCopies, TooManyBytesInAPhaseAreReported) {
  init(2);
  memory_->completion_arrive(issuer(), completion(), 1 << 20, line(20));
  EXPECT_THAT(found(), HasSubstr("expected in one phase"));
}

TEST_F(BulkCopies, AWaitThatIsOverrunByTwoPhasesIsReported) {
  init();
  EXPECT_FALSE(memory_->completion_done(name(0, 0, 1), completion(), 0, line(22)));
  memory_->completion_arrive(issuer(), completion(), 0, line(20));
  memory_->completion_arrive(issuer(), completion(), 0, line(20));
  EXPECT_FALSE(memory_->completion_done(name(0, 0, 1), completion(), 0, line(22)));
  EXPECT_THAT(found(), HasSubstr("two phases ahead"));
}

TEST_F(BulkCopies, SizesAndAddressesAreMultiplesOfSixteen) {
  memory_->bulk_store(issuer(), word(1, 1), shared(0, 0, 0), 32, line(10));
  memory_->bulk_store(issuer(), word(1, 0), shared(0, 0, 0), 24, line(11));
  EXPECT_EQ(findings(), 2u);
  EXPECT_THAT(found(), HasSubstr("multiples of 16"));
}

TEST_F(BulkCopies, LoadsIntoABlockThatEndsAreReported) {
  init();
  load_row();
  end(0);
  EXPECT_THAT(found(), HasSubstr("ends before bulk loads"));
}

}  // namespace
}  // namespace tokenyard::simulation
