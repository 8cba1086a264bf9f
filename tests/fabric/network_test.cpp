// Worlds over simulated cards; how a region is closed; which refusal is told.
#include "fabric/network/regions.hpp"
#include "fabric/network_contract.hpp"
#include "fabric/network_ways.hpp"
#include "fabric/world_access.hpp"

#include <gtest/gtest.h>

namespace tokenyard::testing {
namespace {

void run_hosts(uint32_t ranks, uint32_t hosts, const Program& program) {
  run_as_ranks(worlds_between_hosts(ranks, hosts, 1 << 20, {}, {.run = cards_on_threads()}),
               program);
}

TEST(SimulatedNetwork, HostsAreNamedInTheTopology) {
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

TEST(SimulatedNetwork, AWorldWithinReachHasNone) {
  run_hosts(2, 1, [](World& world) {
    promise(network_of(world) == nullptr, "a world without far ranks must have no network");
  });
}

TEST(SimulatedNetwork, OptionsNameATransportOrAreRefused) {
  const auto worlds_with = [](const NetworkOptions& network) {
    return World::in_process(2, "host", {.arena_bytes = 1 << 20, .hosts = 2, .network = network});
  };
  run_as_ranks(worlds_with({.transport = "tcp", .connections = 3}), [](World& world) {
    const std::string& how = world.topology().peers[1 - world.rank()].how;
    promise(how.find("proxy/tcp") != std::string::npos &&
                how.find("3 connections") != std::string::npos,
            how);
    signals_follow_puts(world, 3);
  });
  const auto refused = [&](const NetworkOptions& network) -> std::string {
    try {
      (void)worlds_with(network);
    } catch (const InvalidArgument& error) {
      return error.argument;
    }
    return "nothing";
  };
  EXPECT_EQ(refused({.queues = 3}), "network.queues");
  EXPECT_EQ(refused({.timeout = std::chrono::seconds(1)}), "network.timeout");
  EXPECT_EQ(refused({.traffic_class = 0}), "network.traffic_class");
  EXPECT_EQ(refused({.transport = "gin"}), "network.transport");
  EXPECT_EQ(refused({.transport = "ibgda:mlx5_0"}), "network.transport");
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

}  // namespace
}  // namespace tokenyard::testing
