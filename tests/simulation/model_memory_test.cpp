// The memory model, one access at a time: the time at which stores land, and the faults reported.

#include <gmock/gmock.h>

#include "simulation/model_memory_fixture.hpp"

namespace tokenyard::simulation {
namespace {

using testing::HasSubstr;

TEST_F(ModelMemoryTest, AWeakStoreIsLateButItsThreadSeesIt) {
  store(writer(), word(1, 0), 5);
  EXPECT_EQ(*word(1, 0), 0u);
  EXPECT_EQ(load(writer(), word(1, 0)), 5u);
}

TEST_F(ModelMemoryTest, AReleaseBringsTheStoresBeforeItToWhoAcquiresIt) {
  store(writer(), word(1, 0), 5);
  store(writer(), word(1, 8), 1, Order::release);
  EXPECT_EQ(*word(1, 0), 0u);
  EXPECT_EQ(load(reader(), word(1, 8), Order::acquire), 1u);
  EXPECT_EQ(plain_load(reader(), word(1, 0)), 5u);
  EXPECT_EQ(found(), "");
}

TEST_F(ModelMemoryTest, AMissingReleaseIsARaceAndShowsOldData) {
  store(writer(), word(1, 0), 5);
  store(writer(), word(1, 8), 1, Order::relaxed);
  EXPECT_EQ(load(reader(), word(1, 8), Order::acquire), 1u);
  EXPECT_EQ(plain_load(reader(), word(1, 0)), 0u);
  EXPECT_EQ(found(),
            "race on 4 bytes of arena + 0x0: no chain of releases, acquires and barriers orders "
            "them\n"
            "    weak store by thread 0 (warp 0) of block 0 of rank 0 at 1\n"
            "    ordinary load by thread 0 (warp 0) of block 0 of rank 1 at 3\n");
}

TEST_F(ModelMemoryTest, AMissingAcquireIsARace) {
  store(writer(), word(1, 0), 5);
  store(writer(), word(1, 8), 1, Order::release);
  EXPECT_EQ(load(reader(), word(1, 8), Order::relaxed), 1u);
  plain_load(reader(), word(1, 0));
  EXPECT_EQ(findings(), 1u);
}

TEST_F(ModelMemoryTest, ATooNarrowScopeIsReportedAsSuch) {
  store(writer(), word(1, 8), 1, Order::release, Scope::gpu);
  load(reader(), word(1, 8), Order::acquire, Scope::sys);
  EXPECT_THAT(found(), HasSubstr("the scope of one does not include the other thread"));
  EXPECT_THAT(found(), HasSubstr("release store, gpu scope,"));
}

TEST_F(ModelMemoryTest, GpuScopeIsEnoughOnOneRank) {
  store(writer(), word(0, 0), 5);
  store(writer(), word(0, 8), 1, Order::release, Scope::gpu);
  load(name(0, 1, 0), word(0, 8), Order::acquire, Scope::gpu);
  EXPECT_EQ(plain_load(name(0, 1, 0), word(0, 0)), 5u);
  EXPECT_EQ(found(), "");
}

TEST_F(ModelMemoryTest, FencesMakeRelaxedAccessesSynchronise) {
  EXPECT_EQ(hand_over(Fence::acq_rel, Order::relaxed, Order::relaxed, Fence::acq_rel), 5u);
  EXPECT_EQ(found(), "");
}

TEST_F(ModelMemoryTest, HalfAFenceIsEnoughOnItsOwnSide) {
  EXPECT_EQ(hand_over(Fence::release, Order::relaxed, Order::relaxed, Fence::acquire), 5u);
  EXPECT_EQ(found(), "");
}

TEST_F(ModelMemoryTest, AReleasingFenceAcquiresNothing) {
  hand_over({}, Order::release, Order::relaxed, Fence::release);
  EXPECT_NE(found(), "");
}

TEST_F(ModelMemoryTest, AnAcquiringFenceReleasesNothing) {
  hand_over(Fence::acquire, Order::relaxed, Order::acquire, {});
  EXPECT_NE(found(), "");
}

TEST_F(ModelMemoryTest, ABarrierOrdersItsBlockAndAMissingOneIsARace) {
  plain_store(name(0, 0, 0), shared(0, 0, 0), 1);
  meet(0, 0);
  plain_load(name(0, 0, 1), shared(0, 0, 0));
  EXPECT_EQ(found(), "");
  plain_store(name(0, 0, 0), shared(0, 0, 0), 2);
  plain_load(name(0, 0, 1), shared(0, 0, 0));
  EXPECT_THAT(found(), HasSubstr("shared memory of block 0 of rank 0"));
}

TEST_F(ModelMemoryTest, WhatABarrierJoinsAReleaseByAnyOfThemPublishes) {
  store(name(0, 0, 1), word(1, 0), 5);
  meet(0, 0);
  store(name(0, 0, 0), word(1, 8), 1, Order::release);
  load(reader(), word(1, 8), Order::acquire);
  EXPECT_EQ(plain_load(reader(), word(1, 0)), 5u);
  EXPECT_EQ(found(), "");
}

TEST_F(ModelMemoryTest, ARelaxedWordIsNoRaceWithItselfWhateverTheTiming) {
  for (uint32_t rank = 0; rank < 2; ++rank)
    for (uint32_t block = 0; block < 2; ++block) {
      uint32_t one = 1, old = 0;
      memory_->modify(name(rank, block, 0), simt::Modify::add, word(0, 0), &one, &old, 4,
                      Order::relaxed, Scope::sys, line(6));
      load(name(rank, block, 1), word(0, 0), Order::relaxed);
    }
  EXPECT_EQ(*word(0, 0), 4u);
  EXPECT_EQ(found(), "");
}

TEST_F(ModelMemoryTest, AGridsEndOrdersTheNextOneAfterIt) {
  plain_store(name(0, 0, 0), word(0, 0), 1);
  store(name(0, 1, 0), word(0, 1), 2);
  end(0);
  EXPECT_EQ(*word(0, 1), 2u);
  begin(0);
  plain_store(name(0, 1, 1), word(0, 0), 2);
  EXPECT_EQ(plain_load(name(0, 0, 1), word(0, 1)), 2u);
  EXPECT_EQ(found(), "");
  // Another rank is not ordered after it.
  plain_load(reader(), word(0, 0));
  EXPECT_EQ(findings(), 1u);
}

TEST_F(ModelMemoryTest, AFlagForTheHostIsReleasedAtSystemScope) {
  store(writer(), word(0, 0), 1, Order::release, Scope::sys);
  EXPECT_EQ(memory_->read_flag(hosts_[0], word(0, 0)), 1u);
  EXPECT_EQ(found(), "");
  store(writer(), word(0, 4), 1, Order::relaxed, Scope::sys);
  memory_->read_flag(hosts_[0], word(0, 4));
  EXPECT_THAT(found(), HasSubstr("arena + 0x10, which was stored without a release"));
  store(writer(), word(0, 8), 1, Order::release, Scope::gpu);
  memory_->read_flag(hosts_[0], word(0, 8));
  EXPECT_THAT(found(), HasSubstr("the scope of one does not include the other thread"));
}

TEST_F(ModelMemoryTest, StoresOfARankThatStopsVanishOrLand) {
  store(writer(), word(1, 0), 5);
  memory_->stop(0, InFlight::vanish);
  EXPECT_EQ(*word(1, 0), 0u);
  store(reader(), word(0, 0), 6);
  memory_->stop(1, InFlight::land);
  EXPECT_EQ(*word(0, 0), 6u);
}

/// An idle step settles one word if there are few, but more at once after dozens of ranks.
TEST_F(ModelMemoryTest, OldValuesOfThousandsOfWordsAreGoneAfterFewIdleSteps) {
  for (const size_t words : {size_t{100}, size_t{40960}}) {
    start({.delivery = Delivery::newest_first, .stale_per_1024 = 0});
    std::vector<uint32_t> many(words);
    memory_->add_region("many", many.data(), words * sizeof(uint32_t), 1);
    for (uint32_t& word : many) store(writer(), &word, 1, Order::relaxed);
    size_t steps = 0;
    while (memory_->step_when_idle()) ++steps;
    if (words < 512)
      EXPECT_EQ(steps, words);
    else
      EXPECT_LT(steps, words / 10);
    EXPECT_EQ(load(reader(), &many.back(), Order::relaxed), 1u);
    memory_->remove_region(many.data());
  }
}

TEST_F(ModelMemoryTest, WordsOutsideKnownMemoryAreReported) {
  uint32_t nowhere = 3;
  EXPECT_EQ(load(writer(), &nowhere, Order::relaxed), 3u);
  EXPECT_THAT(found(), HasSubstr("outside all memory of the world"));
}

TEST_F(ModelMemoryTest, UseAfterFreeIsReported) {
  memory_->remove_region(&arenas_[1]);
  plain_load(writer(), word(1, 0));
  EXPECT_THAT(found(), HasSubstr("freed memory"));
}

}  // namespace
}  // namespace tokenyard::simulation
