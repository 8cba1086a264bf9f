/// An arena without room on one rank alone refuses an object on all ranks alike, before any rank
/// waits for another: the error names the rank, the bytes that it needs and those that it has.
#include <gmock/gmock.h>

#include <chrono>
#include <functional>
#include <optional>

#include "collectives/device/host/device_collectives.hpp"
#include "expert_parallel/ranks.hpp"
#include "expert_parallel/throughput/steps.hpp"
#include "fabric/arena.hpp"
#include "fabric/host/in_process_fabric.hpp"
#include "fabric/world_access.hpp"
#include "simt/host_accelerator.hpp"
#include "tokenyard/expert_parallel.hpp"
#include "tokenyard/low_latency.hpp"
#include "tokenyard/megakernel/megakernel.hpp"

namespace tokenyard::test {
namespace {

using HostOf = std::vector<uint32_t>;
using testing::HasSubstr;

constexpr uint32_t kSmall = 1;  ///< rank whose arena has no room
constexpr size_t kArena = size_t{128} << 20;

/// An object that takes memory of every rank's arena.
struct Object {
  const char* name;
  std::function<void(World&)> make_and_close;
};

const Object kObjects[] = {
    {"LowLatency",
     [](World& world) {
       LowLatency exchange(world, {.experts = 12, .hidden = 64, .topk = 2, .tokens_max = 64});
       exchange.close();
     }},
    {"LowLatencyByPut",
     [](World& world) {
       const bool can = world.topology().hosts == world.size();
       LowLatency exchange(world,
                           {.experts = 12,
                            .hidden = 64,
                            .topk = 2,
                            .tokens_max = 64,
                            .paths = can ? LowLatencyPaths::put : LowLatencyPaths::topology});
       exchange.close();
     }},
    {"ExpertParallel",
     [](World& world) {
       const ExpertParallel exchange(world,
                                     {.experts = 12, .hidden = 64, .topk = 2, .tokens_max = 64});
     }},
    {"DeviceCollectives",
     [](World& world) {
       const device_collectives::DeviceCollectives collectives(
           world, {.slot_bytes = 64, .chunk_bytes = 256});
     }},
    {"SharedTensor",
     [](World& world) {
       megakernel::TensorMemory memory(world);
       (void)memory.shared(size_t{1} << 16);
     }},
    {"SharedTensorOfAHost",
     [](World& world) {
       megakernel::TensorMemory memory(world);
       (void)memory.shared_on_host(size_t{1} << 16);
     }},
};

std::vector<std::unique_ptr<World>> worlds(const HostOf& host_of) {
  std::vector<std::shared_ptr<Accelerator>> accelerators;
  for (size_t rank = 0; rank < host_of.size(); ++rank)
    accelerators.push_back(std::make_shared<simt::HostAccelerator>([] {}));
  return join_all(accelerators, std::make_shared<InProcessFabric>(host_of),
                  {.timeout = std::chrono::seconds(4), .arena_bytes = kArena},
                  {.run = cards_on_threads()});
}

/// Fills all but so many bytes of the arena of rank kSmall.
std::optional<ArenaBlock> leave_room(World& world, size_t room) {
  if (world.rank() != kSmall) return std::nullopt;
  Arena& arena = arena_of(world);
  constexpr size_t kUnit = 256;
  const size_t free = (arena.capacity() - arena.used()) / kUnit * kUnit;
  return arena.allocate(free - room, Stream{});
}

class SmallArena : public testing::TestWithParam<HostOf> {};

/// Each part of an object is, in turn, the first that does not fit.
TEST_P(SmallArena, OfOneRankRefusesAnObjectOnAllRanks) {
  for (const Object& object : kObjects) {
    SCOPED_TRACE(object.name);
    uint32_t refused = 0;
    bool fits = false;
    const auto ranks = worlds(GetParam());
    for (size_t room = 0; !fits && room < kArena / 8 * 7; room = room * 3 / 2 + 8192) {
      SCOPED_TRACE(room);
      std::vector<std::optional<ArenaBlock>> taken;
      for (const auto& world : ranks) taken.push_back(leave_room(*world, room));
      const auto outcomes = run_ranks(ranks, object.make_and_close);
      fits = !outcomes[0];
      if (fits) {
        expect_none_failed(outcomes);
        break;
      }
      ++refused;
      for (const auto& outcome : outcomes) {
        const auto error = error_of<InvalidArgument>(outcome);
        ASSERT_EQ(error.argument, "arena_bytes");
        EXPECT_EQ(error.rank, kSmall);
        EXPECT_THAT(error.expected, HasSubstr("room for "));
        EXPECT_THAT(error.seen, HasSubstr("at most "));
        EXPECT_STREQ(error.what(), message_of(outcomes[kSmall]).c_str());
      }
    }
    EXPECT_TRUE(fits);
    EXPECT_GE(refused, 1u);
  }
}

/// Nobody waits for the rank that cannot take part. With results of a fixed size, for which no host
/// waits, the refusal ends the object, as every other refusal does.
TEST_P(SmallArena, OfOneRankRefusesADispatchOnAllRanks) {
  const auto size = static_cast<uint32_t>(GetParam().size());
  const ExchangeCase exchange_case{
      .shape = {.ranks = size, .experts = 2 * size, .hidden = 64, .topk = 2},
      .tokens = std::vector<uint32_t>(size, 9)};
  for (const bool fixed_size : {false, true}) {
    SCOPED_TRACE(fixed_size);
    const auto outcomes = run_ranks(worlds(GetParam()), [&](World& world) {
      ExpertParallel exchange(world, exchange_case.options());
      const std::vector<Tokens> all = exchange_case.draw();
      const TokensOnDevice tokens(accelerator_of(world), all[world.rank()], true);
      DispatchInput input = tokens.input();
      if (fixed_size) input.received_tokens_max = 9 * size;
      std::optional<ArenaBlock> taken = leave_room(world, 0);
      try {
        exchange.dispatch(input);
        exchange.wait();
        ADD_FAILURE() << "rank " << world.rank() << " has dispatched";
      } catch (const InvalidArgument& error) {
        EXPECT_EQ(error.argument, "arena_bytes") << error.what();
        // Without a host that waits, the rank itself says what its arena says.
        if (!fixed_size || world.rank() != kSmall) {
          EXPECT_EQ(error.rank, kSmall) << error.what();
        }
        EXPECT_THAT(error.expected, HasSubstr("room for "));
      }
      if (fixed_size) return;
      taken.reset();
      world.barrier("there is room again");
      EXPECT_EQ(difference(exchange, exchange.dispatch(tokens.input()),
                           expected_on(exchange_case.shape, all, world.rank())),
                "");
    });
    expect_none_failed(outcomes);
  }
}

INSTANTIATE_TEST_SUITE_P(, SmallArena,
                         testing::Values(HostOf{0, 0, 0}, HostOf{0, 0, 1}, HostOf{0, 1, 2}),
                         [](const auto& host_of) {
                           std::string name = "Hosts";
                           for (const uint32_t host : host_of.param) name += std::to_string(host);
                           return name;
                         });

}  // namespace
}  // namespace tokenyard::test
