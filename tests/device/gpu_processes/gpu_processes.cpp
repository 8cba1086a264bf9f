/// Worlds with one process per GPU, in real processes: this program starts itself once per rank.
///
///     gpu_processes_test [gtest flags]                       runs the tests
///     gpu_processes_test --rank R --size N --port P --act A  runs one rank of a test
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <iostream>

#include "device/cuda/accelerator.hpp"
#include "device/gpu_processes/one_per_rank.hpp"
#include "expert_parallel/throughput/exchange_checks.hpp"
#include "fabric/meeting_place.hpp"
#include "fabric/world_access.hpp"

namespace tokenyard::test {
namespace {

constexpr int kExchanged = 0, kWrong = 1, kNamedTheDead = 42;

ExchangeCase exchange_of(uint32_t ranks) {
  std::vector<uint32_t> tokens;
  for (uint32_t rank = 0; rank < ranks; ++rank) tokens.push_back(64 + 31 * rank);
  return {.shape = {.ranks = ranks, .experts = 8 * ranks, .hidden = 512, .topk = 4},
          .tokens = tokens,
          .picking = {.none = 0.1}};
}

/// Kills rank 1 once all ranks are ready to dispatch, so that the others' kernels wait for it.
int die_or_name_the_dead(World& world, const ExchangeCase& exchange_case) {
  const std::vector<Tokens> all = exchange_case.draw();
  ExpertParallel exchange(world, exchange_case.options());
  const TokensOnDevice tokens(accelerator_of(world), all[world.rank()], true);
  world.barrier("ready to dispatch");
  if (world.rank() == 1) raise(SIGKILL);
  try {
    exchange.dispatch(tokens.input());
  } catch (const PeerLost& error) {
    std::cout << "rank " << world.rank() << ": " << error.what() << "\n";
    return error.facts.rank == 1 ? kNamedTheDead : kWrong;
  }
  return kWrong;
}

int play(const Role& role) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // No process outlives the tests if they are killed.
  const auto world = connect_world({.host = "127.0.0.1",
                                    .port = role.port,
                                    .rank = role.rank,
                                    .size = role.size,
                                    .local_rank = role.rank},
                                   "cuda",
                                   {.timeout = std::chrono::seconds(role.act == "die" ? 5 : 30),
                                    .arena_bytes = size_t{64} << 20});
  if (role.rank == 0) std::cout << world->topology().text();
  const ExchangeCase exchange_case = exchange_of(role.size);
  if (role.act == "die") return die_or_name_the_dead(*world, exchange_case);
  for (int round = 0; round < 3; ++round) {
    const std::string difference = difference_after_exchange(*world, exchange_case);
    if (difference.empty()) continue;
    std::cout << "rank " << role.rank << ", round " << round << ": " << difference << "\n";
    return kWrong;
  }
  return kExchanged;
}

class GpuProcesses : public testing::TestWithParam<uint32_t> {
 protected:
  void SetUp() override {
    if (cuda::gpu_count() < static_cast<int>(GetParam()))
      GTEST_SKIP() << "needs " << GetParam() << " GPUs, but there are " << cuda::gpu_count();
  }
};

TEST_P(GpuProcesses, ExchangeTokens) {
  EXPECT_EQ(run_processes(GetParam(), "exchange"), std::vector<int>(GetParam(), kExchanged));
}

TEST_P(GpuProcesses, NameARankThatIsKilled) {
  if (GetParam() == 1) return;  // No other rank could miss it.
  std::vector<int> expected(GetParam(), kNamedTheDead);
  expected[1] = 128 + SIGKILL;
  EXPECT_EQ(run_processes(GetParam(), "die"), expected);
}

INSTANTIATE_TEST_SUITE_P(, GpuProcesses, testing::Values(1, 2, 4));

}  // namespace
}  // namespace tokenyard::test

int main(int argc, char** argv) {
  CLI::App program("Tests worlds with one process per GPU");
  return tokenyard::test::run_program(program, argc, argv, tokenyard::test::play);
}
