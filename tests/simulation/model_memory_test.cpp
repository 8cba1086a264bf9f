// The memory model one access at a time: what lands when, and what is reported.

#include "simulation/model_memory.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>

namespace tokenyard::simulation {
namespace {

using simt::CodeAddress;
using simt::ThreadName;
using testing::HasSubstr;

CodeAddress line(uintptr_t number) {
  return reinterpret_cast<CodeAddress>(number);
}

/// Two ranks of two blocks of two threads, with memory on each and shared memory in each block.
class ModelMemoryTest : public testing::Test {
 protected:
  struct alignas(128) Memory {
    std::array<uint32_t, 64> words{};
  };

  void SetUp() override { start({.delivery = Delivery::newest_first, .stale_per_1024 = 0}); }

  void start(const Policy& policy) {
    memory_ = std::make_unique<ModelMemory>(
        ModelMemory::Options{.policy = policy, .random = Random(7), .trace = &trace_});
    names_.clear();
    for (uint32_t rank = 0; rank < 2; ++rank) {
      arenas_[rank] = {};
      memory_->add_region("arena", &arenas_[rank], sizeof(Memory), rank);
      hosts_[rank] = memory_->add_host(rank, "host");
      for (uint32_t thread = 0; thread < 4; ++thread)
        names_.push_back({rank * 4 + thread, rank, 0, thread / 2, thread % 2});
    }
    for (uint32_t rank = 0; rank < 2; ++rank) begin(rank);
  }
  void begin(uint32_t rank) {
    memory_->grid_begins(rank, 0, std::span(names_).subspan(rank * 4, 4));
    for (uint32_t block = 0; block < 2; ++block)
      memory_->block_begins(name(rank, block, 0), &shared_[rank * 2 + block], sizeof(Memory));
  }
  void end(uint32_t rank) {
    for (uint32_t thread = 0; thread < 4; ++thread) memory_->thread_ends(names_[rank * 4 + thread]);
    memory_->grid_ends(rank, 0);
  }

  const ThreadName& name(uint32_t rank, uint32_t block, uint32_t thread) const {
    return names_[rank * 4 + block * 2 + thread];
  }
  uint32_t* word(uint32_t rank, uint32_t index) { return &arenas_[rank].words[index]; }
  uint32_t* shared(uint32_t rank, uint32_t block, uint32_t index) {
    return &shared_[rank * 2 + block].words[index];
  }

  void store(const ThreadName& me, uint32_t* to, uint32_t value, Order order = Order::weak,
             Scope scope = Scope::sys) {
    memory_->store(me, to, &value, 4, order, scope, line(1));
  }
  uint32_t load(const ThreadName& me, uint32_t* from, Order order = Order::weak,
                Scope scope = Scope::sys) {
    uint32_t value = 0;
    memory_->load(me, from, &value, 4, order, scope, line(2));
    return value;
  }
  uint32_t plain_load(const ThreadName& me, uint32_t* from) {
    memory_->plain_access(me, from, 4, false, line(3));
    return *from;
  }
  void plain_store(const ThreadName& me, uint32_t* to, uint32_t value) {
    memory_->plain_access(me, to, 4, true, line(4));
    *to = value;
  }
  void meet(uint32_t rank, uint32_t block) {
    const std::array<const ThreadName*, 2> both{&name(rank, block, 0), &name(rank, block, 1)};
    memory_->synchronise(both, both);
  }

  size_t findings() const { return memory_->findings().list().size(); }
  std::string found() const {
    std::string all;
    for (const Finding& finding : memory_->findings().list())
      all += finding.text([](CodeAddress where) {
        return std::to_string(reinterpret_cast<uintptr_t>(where));
      }) + "\n";
    return all;
  }

  const ThreadName& writer() { return name(0, 0, 0); }
  const ThreadName& reader() { return name(1, 0, 0); }

  Trace trace_;
  std::array<Memory, 2> arenas_;
  std::array<Memory, 4> shared_;
  std::vector<ThreadName> names_;
  std::array<ModelMemory::Host, 2> hosts_{};
  std::unique_ptr<ModelMemory> memory_;
};

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
  store(writer(), word(1, 0), 5);
  memory_->fence(writer(), false, Scope::sys, line(5));
  store(writer(), word(1, 8), 1, Order::relaxed);
  load(reader(), word(1, 8), Order::relaxed);
  memory_->fence(reader(), false, Scope::sys, line(5));
  EXPECT_EQ(plain_load(reader(), word(1, 0)), 5u);
  EXPECT_EQ(found(), "");
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
  // Another rank knows nothing of it.
  plain_load(reader(), word(0, 0));
  EXPECT_EQ(findings(), 1u);
}

TEST_F(ModelMemoryTest, AFlagForTheHostIsReleasedAtSystemScope) {
  store(writer(), word(0, 0), 1, Order::release, Scope::sys);
  EXPECT_EQ(memory_->read_flag(hosts_[0], word(0, 0)), 1u);
  EXPECT_EQ(found(), "");
  store(writer(), word(0, 4), 1, Order::relaxed, Scope::sys);
  memory_->read_flag(hosts_[0], word(0, 4));
  EXPECT_THAT(found(), HasSubstr("arena + 0x10, which no release made ready"));
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

// ---- bulk copies --------------------------------------------------------------------------------

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
