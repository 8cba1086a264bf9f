#include "fabric/network_contract.hpp"
#include "fabric/network_kernel_definitions.hpp"
#include "fabric/world_access.hpp"

#include <gtest/gtest.h>

#include "fabric/host/in_process_fabric.hpp"
#include "fabric/network/regions.hpp"
#include "fabric/worlds.hpp"
#include "simt/host_accelerator.hpp"
#include "world/in_process.hpp"

namespace tokenyard::testing {
namespace {

/// Both cards: the one that takes our own requests (0), and the one that reads mlx5 entries from
/// rings of so many blocks.
class SimulatedNetwork : public ::testing::TestWithParam<uint32_t> {
 protected:
  static void run_hosts(uint32_t ranks, uint32_t hosts, const Program& program) {
    WorldOptions options;
    options.timeout = std::chrono::seconds(20);
    options.arena_bytes = 1 << 20;
    options.hosts = hosts;
    std::vector<std::shared_ptr<Accelerator>> accelerators;
    for (uint32_t rank = 0; rank < ranks; ++rank)
      accelerators.push_back(std::make_shared<simt::HostAccelerator>([] {}));
    auto worlds = join_all(accelerators, std::make_shared<InProcessFabric>(hosts), options,
                           {.run = cards_on_threads(), .options = {.mlx5_slots = GetParam()}});
    on_every_rank(ranks, [&](uint32_t rank) {
      const std::unique_ptr<World> mine = std::move(worlds[rank]);
      program(*mine);
    });
  }
};

INSTANTIATE_TEST_SUITE_P(Cards, SimulatedNetwork, ::testing::Values(0, 4, 64),
                         [](const auto& card) {
                           return card.param == 0 ? std::string("requests")
                                                  : fmt::format("mlx5_{}", card.param);
                         });

TEST_P(SimulatedNetwork, SignalsFollowPuts) {
  run_hosts(2, 2, [](World& world) { signals_follow_puts(world, 60); });
  run_hosts(4, 2, [](World& world) { signals_follow_puts(world, 20, {.in_arena = false}); });
  run_hosts(3, 3, [](World& world) { signals_follow_puts(world, 20); });
}

TEST_P(SimulatedNetwork, AFlushFreesSources) {
  run_hosts(4, 2, [](World& world) { flush_frees_sources(world); });
}

TEST_P(SimulatedNetwork, RingsKeepCredit) {
  run_hosts(2, 2, [](World& world) { rings_keep_credit(world, 1, 20); });
  run_hosts(3, 3, [](World& world) { rings_keep_credit(world, kRingSlots, 60); });
}

TEST_P(SimulatedNetwork, PairsFillTheQueue) {
  run_hosts(2, 2, [](World& world) { pairs_fill_the_queue(world, 500); });
}

TEST_P(SimulatedNetwork, TheAbsentAreNamed) {
  run_hosts(2, 2, names_the_absent_over_network);
}

TEST_P(SimulatedNetwork, BadRequestsAreRefused) {
  for (uint32_t what = 0; what < kBadRequests; ++what)
    run_hosts(2, 2, [&](World& world) { refuses(world, static_cast<BadRequest>(what)); });
}

TEST_P(SimulatedNetwork, AFaultEndsWithItsExchange) {
  run_hosts(2, 2, a_fault_ends_with_its_exchange);
}

TEST_P(SimulatedNetwork, DeregisteringEndsAccesses) {
  for (uint32_t run = 0; run < 10; ++run) run_hosts(2, 2, deregistering_ends_accesses);
}

TEST_P(SimulatedNetwork, WhatWasPostedArrives) {
  for (uint32_t ending = 0; ending < kEndings; ++ending) {
    run_hosts(2, 2,
              [&](World& world) { what_was_posted_arrives(world, static_cast<Ending>(ending)); });
  }
}

TEST_P(SimulatedNetwork, WarpsShareAQueue) {
  if (GetParam() == 0) return;  // One thread at a time.
  for (const uint32_t blocks : {1, 2, 4})
    run_hosts(4, 2, [&](World& world) { warps_share_a_queue(world, blocks, kSharers / blocks); });
}

TEST_P(SimulatedNetwork, CarriesLargePuts) {
  run_hosts(2, 2, [](World& world) { carries(world, 64 << 20); });
}

TEST_P(SimulatedNetwork, NetworksComeAndGo) {
  for (uint32_t cycle = 0; cycle < 50; ++cycle)
    run_hosts(2, 2, [](World& world) { signals_follow_puts(world, 1); });
}

TEST_P(SimulatedNetwork, RegionsAreCountedAndKeysChecked) {
  run_hosts(2, 2, [](World& world) {
    Network& network = *network_of(world);
    std::vector<std::byte> memory(64);
    const MemoryKey first = network.register_memory(memory.data(), memory.size());
    network.deregister(first);
    const MemoryKey second = network.register_memory(memory.data(), memory.size());
    promise(first != second, "a region that was registered again must have another key");
    EXPECT_THROW(network.deregister(first), InvalidArgument);
    EXPECT_THROW(network.deregister(network.arena_key(world.rank())), InvalidArgument);
    EXPECT_THROW(network.register_memory(nullptr, 1), InvalidArgument);
    const auto register_many = [&] {
      for (uint32_t region = 0; region < 1000; ++region)
        (void)network.register_memory(memory.data(), memory.size());
    };
    EXPECT_THROW(register_many(), InvalidArgument);
    world.barrier("regions were counted");
  });
}

TEST_P(SimulatedNetwork, HostsAreNamedInTheTopology) {
  run_hosts(4, 2, [](World& world) {
    for (uint32_t rank = 0; rank < world.size(); ++rank) {
      const bool near = world.topology().host_of[rank] == world.topology().host_of[world.rank()];
      promise(near == (arena_of(world).base_of(rank) != nullptr),
              "exactly the near arenas must be mapped");
      promise(near == world.topology().peers[rank].why_not.empty(),
              "exactly the far ranks must have a reason");
    }
    promise(world.topology().hosts == 2, "the topology must have two hosts");
    promise(world.topology().host_of == std::vector<uint32_t>{0, 0, 1, 1},
            "the hosts must have two ranks each");
    const uint32_t far = world.rank() < 2 ? 3 : 0;
    promise(world.topology().peers[far].reach == Reach::put_signal,
            "far ranks must have put/signal reach");
    promise(network_of(world)->reaches(far), "far ranks must have a queue");
    promise(!network_of(world)->reaches(world.rank()), "near ranks must have no queue");
    promise(world.topology().text().find("simulated network") != std::string::npos,
            "the text must name the network");
  });
  WorldOptions uneven;
  uneven.hosts = 2;
  EXPECT_THROW(run_threads("host", 3, uneven, [](World&) {}), InvalidArgument);
}

TEST_P(SimulatedNetwork, SurvivorsRebuildAcrossHosts) {
  run_hosts(4, 2, [](World& world) {
    if (world.rank() == 1) return;
    const auto smaller = world.rebuild({1});
    promise(network_of(*smaller)->arena_key(smaller->rank()) !=
                network_of(world)->arena_key(world.rank()),
            "keys of the world before must be refused");
    promise(smaller->topology().host_of == std::vector<uint32_t>{0, 1, 1},
            "survivors must keep their hosts");
    signals_follow_puts(*smaller, 5);
  });
}

// A card that stays inside one gate must not keep the others open.
TEST(NetworkGates, AFailedCloseLeavesNoGateOpen) {
  constexpr uint32_t kRanks = 4, kRegion = 3;
  constexpr MemoryKey kKey = 0x503;
  simt::HostAccelerator host([] {});
  AbortFlag never(host);
  ErrorRecord record(host, never);
  auto* const memory = static_cast<std::byte*>(host.allocate(RegionTable::bytes(kRanks)));
  auto* const gone = static_cast<uint32_t*>(host.allocate(kRanks * sizeof(uint32_t)));
  const RegionTable table{memory, kRanks};
  const auto gate = [&](uint32_t rank) { return table.gate(kRegion, rank).address(); };
  for (uint32_t rank = 0; rank < kRanks; ++rank) *gate(rank) = kKey;
  *gate(1) += kGateUser;
  launch(host, gate_kernel, {.blocks = 1, .warps = 1}, Stream{},
         GateParams{.wait_context = record.wait_context(std::chrono::milliseconds(20)),
                    .table = table,
                    .number = kRegion,
                    .key = 0,
                    .gone = gone});
  const std::array<std::string, 1> phases = {kGatePhase};
  EXPECT_THROW(record.check(phases), PeerTimeout);
  for (uint32_t rank = 0; rank < kRanks; ++rank)
    EXPECT_EQ(static_cast<uint32_t>(*gate(rank)), 0u) << "the gate of rank " << rank;
  host.free(memory);
  host.free(gone);
}

// A rank whose own request was refused may have no signal to wait for.
TEST(NetworkRefusal, ARefusalIsNamedBeforeATimeout) {
  simt::HostAccelerator host([] {});
  AbortFlag abort_flag(host);
  ErrorRecord record(host, abort_flag);
  const std::array<std::string, 1> phases = {"arrive"};
  record.wait_context(std::chrono::seconds(1)).report->failure =
      static_cast<uint32_t>(Failure::deadline);
  EXPECT_THROW(record.check(phases), PeerTimeout);
  abort_flag.on_refusal([](const std::string& phase) {
    throw NetworkFault({.rank = 0, .peer = 1, .check = "size", .phase = phase});
  });
  EXPECT_THROW(record.check(phases), NetworkFault);
}

TEST(NetworkRefusal, IsForgottenUnlessAnotherRemains) {
  simt::HostAccelerator host([] {});
  AbortFlag abort_flag(host, 3);
  const auto word = [&] { return host.read_flag(abort_flag.word()); };
  const auto refuse = [&] { host.write_flag(abort_flag.word_to_refuse(), kRefused); };
  refuse();
  abort_flag.forget_refusal([] { return true; });
  EXPECT_EQ(word(), kRefused);
  abort_flag.forget_refusal([] { return false; });
  EXPECT_EQ(word(), kNoAbort);
  abort_flag.left(2);
  refuse();
  abort_flag.forget_refusal([] { return false; });
  EXPECT_EQ(word(), kLeft) << "waits for what a rank has not sent end";
  abort_flag.lost(1);
  abort_flag.forget_refusal([] { return false; });
  EXPECT_EQ(word(), abort_for_lost(1));
}

TEST(NetworkRefusal, TheFailedNetworkOfAnotherRankIsNamed) {
  simt::HostAccelerator host([] {});
  AbortFlag abort_flag(host, 3);
  std::array<AbortWord, 3> words{};
  abort_flag.watch(words);
  abort_flag.network_failed(
      {.rank = 0, .peer = 2, .check = "thread", .phase = {}, .cause = "the card is on fire"});
  EXPECT_EQ(host.read_flag(abort_flag.word()), kRefused);
  EXPECT_EQ(words, (std::array<AbortWord, 3>{kNoAbort, kNoAbort, abort_for_lost(2)}));
  abort_flag.forget_refusal([] { return false; });
  EXPECT_EQ(host.read_flag(abort_flag.word()), kRefused) << "it does not come back";
  try {
    abort_flag.check_refused("dispatch");
    ADD_FAILURE() << "nothing was told";
  } catch (const NetworkFault& fault) {
    EXPECT_EQ(fault.facts.peer, 2u);
    EXPECT_EQ(fault.facts.phase, "dispatch");
    EXPECT_NE(std::string(fault.what()).find("rank 2"), std::string::npos) << fault.what();
    EXPECT_NE(std::string(fault.what()).find("on fire"), std::string::npos) << fault.what();
  }
  abort_flag.unwatch(words);
}

TEST_P(SimulatedNetwork, AWorldWithinReachHasNone) {
  run_hosts(2, 1, [](World& world) {
    promise(network_of(world) == nullptr, "a world without far ranks must have no network");
  });
}

}  // namespace
}  // namespace tokenyard::testing
