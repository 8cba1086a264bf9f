/// The networks' contract over NCCL itself, between two processes with a GPU each that call
/// themselves hosts; and what the one sees when the other is killed or stopped, or the network
/// between the two is cut. This program starts itself once per process. With --one-gpu both
/// take turns on one GPU, which NCCL allows from 2.30 on.
///
///     gin_contract [--transport tcp] [--one-gpu] [gtest flags]
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <optional>

#include "device/cuda/accelerator.hpp"
#include "device/gpu_processes/one_per_rank.hpp"
#include "fabric/cable.hpp"
#include "fabric/gather.hpp"
#include "fabric/meeting_place.hpp"
#include "fabric/network_contract.hpp"
#include "fabric/network_kernel_definitions.hpp"
#include "tokenyard/doctor.hpp"

namespace tokenyard::test {
namespace {

using namespace tokenyard::testing;

/// Another one shows that a failure is not the program's.
std::string transport = "gin";
bool one_gpu = false;

constexpr uint32_t kCycles = 20;

WorldOptions options() {
  return {.timeout = std::chrono::seconds(20),
          .arena_bytes = size_t{64} << 20,
          .network = {.transport = transport}};
}

/// Exchanges messages until that fails because of the other rank. `end` ends rank 1, or the way to
/// it, and is called there.
template <class End>
void exchange_until_lost(World& world, const End& end) {
  const uint32_t other = 1 - world.rank();
  NetworkFixture fixture(world, {});
  NetworkParams params = fixture.params();
  const auto processes = gather(world, static_cast<int64_t>(getpid()), "processes");
  try {
    for (params.epoch = 1;; ++params.epoch) {
      if (world.rank() == 1 && params.epoch == 20) end();
      fixture.run(network_exchange_kernel, {}, params);
    }
  } catch (const PeerLost& error) {
    promise(error.facts.rank == other, error.what());
    std::cout << "rank " << world.rank() << ": " << error.what() << "\n";
  } catch (const PeerTimeout& error) {
    promise(error.facts.rank == other, error.what());
    std::cout << "rank " << world.rank() << ": " << error.what() << "\n";
  } catch (const NetworkFault& error) {
    promise(error.facts.peer == other && error.facts.check == "connection", error.what());
    std::cout << "rank " << world.rank() << ": " << error.what() << "\n";
  }
  promise(params.epoch >= 20, "it has failed before rank 1 ended");
  if (world.rank() == 0) kill(static_cast<pid_t>(processes[1]), SIGKILL);
}

int play(const Role& role) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // No process outlives the tests if they are killed.
  const auto since = [begin = std::chrono::steady_clock::now()] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  // For NCCL, too, they are hosts.
  if (one_gpu) {
    setenv("NCCL_HOSTID", ("host " + std::to_string(role.rank)).c_str(), 1);
    setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
  }
  std::optional<Cable> cable;
  if (role.act == "cut") {
    cable.emplace(role.rank, "/tmp/tokenyard-cable-" + std::to_string(role.port));
    // NCCL takes any interface but the loopback's.
    unsetenv("NCCL_SOCKET_IFNAME");
  }
  auto world = connect_world({.host = cable ? Cable::address(0) : "127.0.0.1",
                              .port = role.port,
                              .rank = role.rank,
                              .size = role.size,
                              .local_rank = role.rank,
                              .host_name = "host " + std::to_string(role.rank)},
                             "cuda", options());
  if (role.rank == 0) std::cout << "after " << since() << " s: " << world->topology().text();
  if (role.act == "order") signals_follow_puts(*world, 40);
  if (role.act == "in_place") signals_follow_puts(*world, 40, {.in_arena = false});
  if (role.act == "flush") flush_frees_sources(*world);
  if (role.act == "rings") {
    rings_keep_credit(*world, 1, 20);
    rings_keep_credit(*world, kRingSlots, 40);
  }
  if (role.act == "pairs") pairs_fill_the_queue(*world, 200);
  if (role.act == "carries")
    for (const uint32_t bytes : {4u, 33u << 10, 8u << 20}) carries(*world, bytes);
  if (role.act == "absent") names_the_absent_over_network(*world);
  if (role.act.starts_with("bad"))
    refuses(*world, static_cast<BadRequest>(std::stoul(role.act.substr(3))));
  if (role.act.starts_with("ending"))
    what_was_posted_arrives(*world, static_cast<Ending>(std::stoul(role.act.substr(6))));
  if (role.act == "cycles") {
    for (uint32_t cycle = 0; cycle < kCycles; ++cycle) {
      world = world->rebuild({});
      signals_follow_puts(*world, 1);
    }
  }
  if (role.act == "killed") exchange_until_lost(*world, [] { raise(SIGKILL); });
  if (role.act == "stopped") exchange_until_lost(*world, [] { raise(SIGSTOP); });
  if (role.act == "cut") {
    exchange_until_lost(*world, [&] { cable->cut(); });
    if (role.rank == 1) pause();  // Rank 0 ends it.
  }
  if (role.act == "times") {
    for (const PeerTimes& times : time_peers(*world, std::chrono::seconds(15))) {
      promise(times.error.empty(), times.error);
      if (role.rank == 0)
        std::cout << times.how << ": " << times.round_trip_us << " us there and back, "
                  << times.bytes_per_second / 1e9 << " GB/s\n";
    }
  }
  if (role.rank == 0) std::cout << role.act << " done after " << since() << " s\n";
  return 0;
}

class GinContract : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const int needed = one_gpu ? 1 : 2;
    if (cuda::gpu_count() < needed)
      GTEST_SKIP() << "needs " << needed << " GPUs, but there are " << cuda::gpu_count();
  }
};

TEST_P(GinContract, IsKept) {
  const bool cuts = GetParam() == "cut";
  if (cuts && !Cable::is_allowed()) GTEST_SKIP() << "no network namespaces here";
  const bool dies = cuts || GetParam() == "killed" || GetParam() == "stopped";
  std::vector<std::string> options{"--transport", transport};
  if (one_gpu) options.emplace_back("--one-gpu");
  EXPECT_EQ(run_processes(2, GetParam(), options), (std::vector<int>{0, dies ? 128 + SIGKILL : 0}));
}

INSTANTIATE_TEST_SUITE_P(, GinContract,
                         ::testing::Values("order", "in_place", "flush", "rings", "pairs",
                                           "carries", "absent", "bad0", "bad1", "bad3", "bad4",
                                           "bad5", "bad6", "bad7", "bad8", "bad9", "ending1",
                                           "ending2", "times", "killed", "stopped", "cut",
                                           "cycles"),
                         [](const auto& act) { return act.param; });

}  // namespace
}  // namespace tokenyard::test

int main(int argc, char** argv) {
  CLI::App program("Tests networks over NCCL between two GPUs");
  program.add_option("--transport", tokenyard::test::transport);
  program.add_flag("--one-gpu", tokenyard::test::one_gpu);
  return tokenyard::test::run_program(program, argc, argv, tokenyard::test::play);
}
