/// Ranks of several hosts with GPUs, over the proxy and TCP: the network's contract and exchanges,
/// by threads that share a GPU, and by processes with one each that call themselves hosts. This
/// program starts itself once per process.
///
///     gpu_hosts_test [--device host] [--transport gin] [gtest flags]
#include <gtest/gtest.h>
#include <sys/prctl.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <iostream>

#include "device/cuda/accelerator.hpp"
#include "device/gpu_processes/one_per_rank.hpp"
#include "expert_parallel/low_latency/checks.hpp"
#include "expert_parallel/low_latency/survivors.hpp"
#include "expert_parallel/ranks.hpp"
#include "expert_parallel/throughput/row_bytes.hpp"
#include "expert_parallel/throughput/steps.hpp"
#include "fabric/meeting_place.hpp"
#include "fabric/network_contract.hpp"
#include "fabric/network_kernel_definitions.hpp"

namespace tokenyard::test {
namespace {

/// "cuda", or "host" to try this program without GPUs.
std::string device = "cuda";
/// Between processes.
std::string transport = "tcp";

WorldOptions options(uint32_t hosts) {
  return {.timeout = std::chrono::seconds(20), .arena_bytes = size_t{128} << 20, .hosts = hosts};
}

void run(uint32_t hosts, uint32_t ranks, const Body& body) {
  expect_none_failed(run_ranks(World::in_process(ranks, device, options(hosts)), body));
}

ExchangeCase some_tokens(uint32_t ranks, uint32_t hidden = 512) {
  std::vector<uint32_t> tokens;
  for (uint32_t rank = 0; rank < ranks; ++rank) tokens.push_back(150 + 31 * rank);
  return {.shape = {.ranks = ranks, .experts = 4 * ranks, .hidden = hidden, .topk = 4},
          .tokens = tokens,
          .picking = {.none = 0.1},
          .sms = 4};
}

/// Several calls on one object, with rows of other formats between them.
std::string difference_after_calls(World& world, const ExchangeCase& exchange_case) {
  ExpertParallel exchange(world, exchange_case.options());
  std::string text;
  for (uint32_t call = 0; call < 3 && text.empty(); ++call) {
    ExchangeCase fresh = exchange_case;
    fresh.seed = call + 1;
    const std::vector<Tokens> all = fresh.draw();
    const Expected expected = expected_on(fresh.shape, all, world.rank());
    const TokensOnDevice tokens(accelerator_of(world), all[world.rank()], true);
    const Received received = exchange.dispatch(tokens.input());
    text += difference(exchange, received, expected);
    DispatchInput again = tokens.input();
    again.topk_idx = again.topk_weights = {};
    text += difference(exchange, exchange.dispatch(again, *received.route), expected);
    text += difference_after_combine(exchange, received, fresh.shape, all[world.rank()], expected,
                                     {.with_weights = call % 2 == 0, .call = call});
    for (const RowFormat& format : {RowFormat{.type = DataType::float8_e4m3fn, .scale_words = 4},
                                    RowFormat{.type = DataType::float32}})
      text += difference_in_format(exchange, tokens, expected, format);
  }
  return text;
}

/// Two exchanges on two streams, whose calls overlap on a GPU: each has queues of its own.
std::string difference_of_two_at_once(World& world, const ExchangeCase& exchange_case) {
  Accelerator& accelerator = accelerator_of(world);
  const std::vector<Tokens> all = exchange_case.draw();
  const Expected expected = expected_on(exchange_case.shape, all, world.rank());
  const TokensOnDevice tokens(accelerator, all[world.rank()], true);
  DispatchInput input = tokens.input();
  // The host waits for no counts.
  input.received_tokens_max = exchange_case.tokens_max() * exchange_case.shape.ranks;
  ExpertParallel one(world, exchange_case.options()), other(world, exchange_case.options());
  const std::array<std::pair<ExpertParallel*, Stream>, 2> both{
      {{&one, accelerator.make_stream()}, {&other, accelerator.make_stream()}}};
  std::string text;
  for (uint32_t round = 0; round < 5; ++round) {
    std::vector<Received> received;
    for (uint32_t call = 0; call < 3; ++call)
      for (const auto& [exchange, stream] : both)
        received.push_back(exchange->dispatch(input, stream));
    for (const auto& [exchange, stream] : both) exchange->wait(stream);
    for (size_t call = 0; call < received.size(); ++call) {
      Received& got = received[call];
      got.rows = static_cast<uint32_t>(expected.rows.size());
      got.rows_from = expected.rows_from;
      got.tokens_per_expert = expected.tokens_per_expert;
      text += difference(*both[call % 2].first, got, expected);
    }
  }
  for (const auto& [exchange, stream] : both) accelerator.free_stream(stream);
  return text;
}

/// Low-latency batches of every kind, one of them overlapped with another, on one object each.
std::string difference_of_low_latency(World& world) {
  std::string text;
  const uint32_t ranks = world.size();
  for (const auto& [rows, hooks, logfmt, early] :
       {std::tuple{LowLatencyRows::fp8, false, false, 0u},
        {LowLatencyRows::bf16, true, false, 0u},
        {LowLatencyRows::fp8_ue8m0, false, true, ~0u},
        {LowLatencyRows::bf16, true, true, 1u}}) {
    LowLatencyCase of{.shape = {.ranks = ranks, .experts = 4 * ranks, .hidden = 7168, .topk = 4},
                      .tokens = {},
                      .picking = {.none = 0.1},
                      .rows = rows,
                      .hooks = hooks,
                      .logfmt = logfmt,
                      .early_weights = early};
    for (uint32_t rank = 0; rank < ranks; ++rank) of.tokens.push_back(5 + 90 * (rank % 2));
    LowLatency exchange(world, of.options());
    for (uint32_t batch = 0; batch < 4 && text.empty(); ++batch, ++of.seed)
      text += difference_after_batch(exchange, of, of.draw());
    // At once: ranks that go on wait for this one, and their errors would hide it.
    if (!text.empty()) std::cout << "rank " << world.rank() << ": " << text << std::endl;
    Survivor all_live(exchange, std::nullopt);
    for (uint32_t turn = 0; turn < 2; ++turn) {
      SurvivorBatch one(all_live, of, false);
      ++of.seed;
      SurvivorBatch other(all_live, of, false);
      ++of.seed;
      overlap(one, other);
    }
    for (const FailedRank& failed : exchange.failed_ranks()) text += failed.text;
    exchange.close();
  }
  return text;
}

/// Returns the time of a dispatch and of a combine of one token per rank, and of 128, in us.
std::string low_latency_times(World& world) {
  std::string text;
  Accelerator& accelerator = accelerator_of(world);
  for (const uint32_t tokens : {1u, 128u}) {
    LowLatencyCase of{
        .shape = {.ranks = world.size(), .experts = 32 * world.size(), .hidden = 7168, .topk = 8},
        .tokens = std::vector<uint32_t>(world.size(), tokens)};
    LowLatency exchange(world, of.options());
    const Tokens mine = of.draw()[world.rank()];
    of.early_weights = ~0u;
    const LowLatencyTokens on_device(world, of, mine);
    const CombineOnDevice combined(exchange, of, mine);
    double dispatch_us = 0, combine_us = 0;
    constexpr uint32_t kRounds = 60, kWarm = 10;
    for (uint32_t round = 0; round < kRounds; ++round) {
      const auto begin = accelerator.now();
      const LowLatencyReceived received = exchange.dispatch(on_device.input());
      exchange.wait();
      const auto between = accelerator.now();
      exchange.combine(combined.what(exchange.combine_buffer(received.handle), on_device),
                       received.handle);
      exchange.wait();
      const auto end = accelerator.now();
      if (round < kWarm) continue;
      dispatch_us += std::chrono::duration<double, std::micro>(between - begin).count();
      combine_us += std::chrono::duration<double, std::micro>(end - between).count();
    }
    text += fmt::format("{} tokens: dispatch {:.1f} us, combine {:.1f} us, with the host's wait\n",
                        tokens, dispatch_us / (kRounds - kWarm), combine_us / (kRounds - kWarm));
    exchange.close();
  }
  return text;
}

class ThreadsAsHosts : public ::testing::Test {
 protected:
  void SetUp() override {
    if (device == "cuda" && cuda::gpu_count() == 0) GTEST_SKIP() << "there is no GPU";
  }
};

TEST_F(ThreadsAsHosts, SayHowTheyReachOneAnother) {
  run(2, 2, [](World& world) {
    const PeerReach& peer = world.topology().peers[1 - world.rank()];
    EXPECT_EQ(peer.reach, Reach::put_signal);
    if (world.rank() == 0) std::cout << world.topology().text();
    if (device == "cuda") {
      EXPECT_NE(peer.how.find("pinned rings"), std::string::npos) << peer.how;
    }
  });
}

TEST_F(ThreadsAsHosts, KeepTheNetworksContract) {
  run(2, 2, [](World& world) { tokenyard::testing::signals_follow_puts(world, 60); });
  run(2, 4, [](World& world) { tokenyard::testing::flush_frees_sources(world); });
  run(2, 2, [](World& world) { tokenyard::testing::rings_keep_credit(world, 1, 20); });
  run(3, 3, [](World& world) {
    tokenyard::testing::rings_keep_credit(world, tokenyard::testing::kRingSlots, 60);
  });
  for (const uint32_t bytes : {4u, 33u << 10, 16u << 20})
    run(2, 2, [&](World& world) { tokenyard::testing::carries(world, bytes); });
}

TEST_F(ThreadsAsHosts, AreRefusedBadRequests) {
  for (uint32_t what = 0; what < tokenyard::testing::kBadRequests; ++what) {
    SCOPED_TRACE(what);
    run(2, 2, [&](World& world) {
      tokenyard::testing::refuses(world, static_cast<tokenyard::testing::BadRequest>(what));
    });
  }
}

TEST_F(ThreadsAsHosts, CannotRegisterMemoryOfAGpu) {
  if (device != "cuda") return;
  run(2, 2, [](World& world) {
    Accelerator& gpu = accelerator_of(world);
    auto* const memory = static_cast<std::byte*>(gpu.allocate(4096));
    EXPECT_THROW(network_of(world)->register_memory(memory, 4096), InvalidArgument);
    EXPECT_THROW(network_of(world)->register_memory(arena_of(world).base(), 4096), InvalidArgument);
    gpu.free(memory);
  });
}

TEST_F(ThreadsAsHosts, ExchangeTokens) {
  for (const auto& [hosts, ranks] : {std::pair{2u, 2u}, {2u, 4u}, {3u, 3u}}) {
    SCOPED_TRACE(::testing::Message() << hosts << " hosts, " << ranks << " ranks");
    run(hosts, ranks, [&, ranks = ranks](World& world) {
      EXPECT_EQ(difference_after_exchange(world, some_tokens(ranks)), "");
    });
  }
}

TEST_F(ThreadsAsHosts, CallOftenInOtherFormats) {
  run(2, 2, [](World& world) { EXPECT_EQ(difference_after_calls(world, some_tokens(2)), ""); });
}

TEST_F(ThreadsAsHosts, ExchangeWideRowsAndManyTokens) {
  run(2, 2, [](World& world) {
    ExchangeCase exchange_case = some_tokens(2, 7168);
    exchange_case.tokens = {300, 700};
    EXPECT_EQ(difference_after_exchange(world, exchange_case), "");
  });
}

TEST_F(ThreadsAsHosts, RunTwoExchangesAtOnce) {
  run(2, 2, [](World& world) { EXPECT_EQ(difference_of_two_at_once(world, some_tokens(2)), ""); });
}

TEST_F(ThreadsAsHosts, MakeLowLatencyBatches) {
  for (const auto& [hosts, ranks] : {std::pair{2u, 2u}, {2u, 4u}, {3u, 3u}}) {
    SCOPED_TRACE(::testing::Message() << hosts << " hosts, " << ranks << " ranks");
    run(hosts, ranks, [](World& world) { EXPECT_EQ(difference_of_low_latency(world), ""); });
  }
}

int play(const Role& role) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // No process outlives the tests if they are killed.
  WorldOptions mine = options(1);
  if (transport == "gin") mine.arena_bytes = size_t{256} << 20;  // Rings lie in the arena.
  mine.network.transport = transport;
  const auto world = connect_world({.host = "127.0.0.1",
                                    .port = role.port,
                                    .rank = role.rank,
                                    .size = role.size,
                                    .local_rank = role.rank,
                                    .host_name = "host " + std::to_string(role.rank)},
                                   device, mine);
  if (role.rank == 0) std::cout << world->topology().text();
  std::string text;
  if (role.act == "contract") {
    tokenyard::testing::signals_follow_puts(*world, 40);
    tokenyard::testing::flush_frees_sources(*world);
    tokenyard::testing::rings_keep_credit(*world, tokenyard::testing::kRingSlots, 40);
    tokenyard::testing::carries(*world, 8 << 20);
    if (network_of(*world)->registers_memory())
      tokenyard::testing::deregistering_ends_accesses(*world);
  }
  if (role.act == "absent") tokenyard::testing::names_the_absent_over_network(*world);
  if (role.act == "exchange")
    for (int round = 0; round < 3 && text.empty(); ++round)
      text = difference_after_exchange(*world, some_tokens(role.size));
  if (role.act == "wide") {
    ExchangeCase exchange_case = some_tokens(role.size, 7168);
    for (uint32_t& tokens : exchange_case.tokens) tokens += 1000;
    text = difference_after_exchange(*world, exchange_case);
  }
  if (role.act == "at_once") text = difference_of_two_at_once(*world, some_tokens(role.size));
  if (role.act == "calls") text = difference_after_calls(*world, some_tokens(role.size));
  if (role.act == "low_latency") text = difference_of_low_latency(*world);
  if (role.act == "low_latency_times") {
    const std::string times = low_latency_times(*world);
    if (role.rank == 0) std::cout << times;
  }
  if (text.empty()) return 0;
  std::cout << "rank " << role.rank << ": " << text << "\n";
  return 1;
}

class ProcessesAsHosts : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (device == "cuda" && cuda::gpu_count() < 2)
      GTEST_SKIP() << "needs 2 GPUs, but there are " << cuda::gpu_count();
  }
};

TEST_P(ProcessesAsHosts, DoAllOfIt) {
  EXPECT_EQ(run_processes(2, GetParam(), {"--device", device, "--transport", transport}),
            (std::vector<int>{0, 0}));
}

INSTANTIATE_TEST_SUITE_P(, ProcessesAsHosts,
                         ::testing::Values("contract", "absent", "exchange", "wide", "calls",
                                           "at_once", "low_latency", "low_latency_times"),
                         [](const auto& act) { return act.param; });

}  // namespace
}  // namespace tokenyard::test

int main(int argc, char** argv) {
  CLI::App program("Tests ranks of several hosts with GPUs");
  program.add_option("--device", tokenyard::test::device);
  program.add_option("--transport", tokenyard::test::transport);
  return tokenyard::test::run_program(program, argc, argv, tokenyard::test::play);
}
