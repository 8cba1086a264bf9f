/// DirectMemory's guarantees between threads, with real threads on real memory.
#include "simt/direct_memory.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

namespace tokenyard::testing {

namespace {

constexpr simt::ThreadName kMe{};

TEST(DirectMemory, SixteenBytesAreWrittenAndReadAsOne) {
  simt::DirectMemory writers_memory, readers_memory;
  Bytes16 shared{};
  std::atomic<bool> stop = false;
  std::thread writer([&] {
    for (uint32_t value = 1; !stop; ++value) {
      const Bytes16 all{{value, value, value, value}};
      writers_memory.store(kMe, &shared, &all, 16, Order::relaxed, Scope::sys, nullptr);
    }
  });
  uint32_t distinct = 0, last = 0;
  for (int look = 0; look < 50'000 || distinct < 10; ++look) {
    Bytes16 seen;
    readers_memory.load(kMe, &shared, &seen, 16, Order::relaxed, Scope::sys, nullptr);
    for (const uint32_t word : seen.word) ASSERT_EQ(word, seen.word[0]);
    distinct += seen.word[0] != last;
    last = seen.word[0];
  }
  stop = true;
  writer.join();
}

/// Fails under ThreadSanitizer unless DirectMemory annotates fences, which the tool does not model.
TEST(DirectMemory, FencesOrderAsAccessesDo) {
  const bool either[] = {false, true};
  for (const bool release_by_fence : either)
    for (const bool acquire_by_fence : either) {
      uint32_t data = 0, told = 0;
      std::thread writer([&] {
        simt::DirectMemory memory;
        const uint32_t yes = 1;
        data = 7;
        if (release_by_fence) memory.fence(kMe, Fence::release, Scope::sys, nullptr);
        memory.store(kMe, &told, &yes, 4, release_by_fence ? Order::relaxed : Order::release,
                     Scope::sys, nullptr);
      });
      simt::DirectMemory memory;
      for (uint32_t seen = 0; seen == 0;)
        memory.load(kMe, &told, &seen, 4, acquire_by_fence ? Order::relaxed : Order::acquire,
                    Scope::sys, nullptr);
      if (acquire_by_fence) memory.fence(kMe, Fence::acquire, Scope::sys, nullptr);
      EXPECT_EQ(data, 7u);
      writer.join();
    }
}

TEST(DirectMemory, NoAdditionIsLostBetweenThreads) {
  constexpr uint64_t kEach = 50'000;
  uint64_t total = 0;
  const auto add_many = [&] {
    simt::DirectMemory memory;
    const uint64_t one = 1;
    for (uint64_t i = 0; i < kEach; ++i)
      memory.modify(kMe, simt::Modify::add, &total, &one, nullptr, 8, Order::relaxed, Scope::sys,
                    nullptr);
  };
  std::thread other(add_many);
  add_many();
  other.join();
  EXPECT_EQ(total, 2 * kEach);
}

void await(simt::DirectMemory& memory, const uint32_t& flag, uint32_t value) {
  for (uint32_t seen = value - 1; seen != value; std::this_thread::yield())
    memory.load(kMe, &flag, &seen, 4, Order::acquire, Scope::sys, nullptr);
}

TEST(DirectMemory, AReleaseCarriesWhatWasWrittenBeforeIt) {
  constexpr uint32_t kRounds = 2'000;
  uint64_t data = 0;
  uint32_t full = 0, empty = 0;
  std::thread reader([&] {
    simt::DirectMemory memory;
    for (uint32_t round = 1; round <= kRounds; ++round) {
      await(memory, full, round);
      EXPECT_EQ(data, uint64_t{round} * 3);  // A plain read, as in a kernel.
      memory.store(kMe, &empty, &round, 4, Order::release, Scope::sys, nullptr);
    }
  });
  simt::DirectMemory memory;
  for (uint32_t round = 1; round <= kRounds; ++round) {
    data = uint64_t{round} * 3;
    memory.store(kMe, &full, &round, 4, Order::release, Scope::sys, nullptr);
    await(memory, empty, round);
  }
  reader.join();
}

}  // namespace

}  // namespace tokenyard::testing
