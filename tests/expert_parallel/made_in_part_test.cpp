/// An exchange whose construction fails because its device is out of memory frees what it has
/// allocated.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "expert_parallel/rank_memory.hpp"
#include "expert_parallel/recording_accelerator.hpp"
#include "fabric/arena.hpp"
#include "fabric/exchange_window_addresses.hpp"
#include "fabric/world_access.hpp"
#include "tokenyard/expert_parallel.hpp"
#include "tokenyard/low_latency.hpp"

namespace tokenyard::test {
namespace {

/// Makes and destroys an exchange by `make(world)`; returns how many allocations failed before it
/// succeeded.
template <class Make>
uint32_t refusals(Make make) {
  const auto all = recording_worlds(1, {.arena_bytes = size_t{4} << 20});
  RecordingAccelerator& accelerator = recording_accelerator(*all[0]);
  const size_t before = accelerator.pieces();
  for (uint32_t times = 0;; ++times) {
    accelerator.refuse_memory_after(times);
    try {
      make(*all[0]);
      EXPECT_EQ(accelerator.pieces(), before);
      return times;
    } catch (const std::bad_alloc&) {
      EXPECT_EQ(accelerator.pieces(), before) << "after " << times << " pieces";
    } catch (const OsError& error) {  // Of a step that all ranks make together.
      EXPECT_EQ(error.code, ENOMEM);
      EXPECT_EQ(accelerator.pieces(), before) << "after " << times << " pieces";
    }
  }
}

TEST(MadeInPart, ExpertParallelGivesBackItsMemory) {
  EXPECT_GE(refusals([](World& world) {
              ExpertParallel exchange(world,
                                      {.experts = 4, .hidden = 64, .topk = 2, .tokens_max = 8});
            }),
            5u);
}

TEST(MadeInPart, LowLatencyGivesBackItsMemory) {
  EXPECT_GE(refusals([](World& world) {
              LowLatency exchange(world, {.experts = 4, .hidden = 64, .topk = 2, .tokens_max = 8});
              exchange.close();
            }),
            5u);
}

TEST(MadeInPart, AWindowThatOthersMayKnowOfStaysOutOfUse) {
  const auto all = World::in_process(1, "host", {.arena_bytes = size_t{4} << 20});
  World& world = *all[0];
  const size_t before = arena_of(world).used();
  ArenaBlock window = arena_of(world).allocate(4096, Stream{});
  const size_t taken = arena_of(world).used();
  const auto dropped = [&] {
    window = ArenaBlock();
    await_all(accelerator_of(world));  // Memory is freed in stream order.
    return arena_of(world).used();
  };
  exchange_window_addresses(world, window, "windows", [&](const std::vector<std::byte*>& windows) {
    EXPECT_THAT(windows, testing::ElementsAre(window.data()));
  });
  EXPECT_EQ(dropped(), before);
  window = arena_of(world).allocate(4096, Stream{});
  EXPECT_THROW(
      exchange_window_addresses(world, window, "windows",
                                [](const std::vector<std::byte*>&) { throw std::bad_alloc(); }),
      std::bad_alloc);
  EXPECT_EQ(dropped(), taken);
}

}  // namespace
}  // namespace tokenyard::test
