/// Real processes on several hosts, between which TCP carries the rows: a rank that stops or leaves
/// is named by all others, also by those that wait for it only through other ranks. The job's
/// silence lasts longer than their waits, so they learn nothing from it.
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>

#include "expert_parallel/throughput/steps.hpp"
#include "fabric/meeting_place.hpp"
#include "fabric/world_access.hpp"
#include "fabric/worlds.hpp"
#include "faults/board.hpp"
#include "tokenyard/expert_parallel.hpp"

namespace tokenyard::testing {
namespace {

using std::chrono::duration;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

enum class Phase : uint8_t { dispatch, combine };
enum class Ending : uint8_t { stops, leaves };

struct Plan {
  std::vector<uint32_t> host_of;
  uint32_t victim;
  Phase phase;
  Ending ending;
};

/// A stopped rank is named at the end of the longest wait: 1.375 timeouts, which is less than the
/// silence after which the job would tell (5 s).
constexpr milliseconds kTimeout{2500};
/// One that leaves is named at once; the deadline must not be what ends a wait.
constexpr milliseconds kLong{60000};
/// For the machine, which may be busy.
constexpr milliseconds kSlack{15000};

class Exchanging {
 public:
  Exchanging(World& world, const Plan& plan)
      : world_(world),
        plan_(plan),
        case_{
            .shape = {.ranks = world.size(), .experts = 2 * world.size(), .hidden = 64, .topk = 2},
            .tokens = std::vector<uint32_t>(world.size(), 24)},
        exchange_(world, case_.options()),
        all_(case_.draw()),
        tokens_(accelerator_of(world), all_[world.rank()], true),
        out_(accelerator_of(world), all_[world.rank()].x.size()) {}

  /// Makes both kinds of calls once.
  void begin() {
    received_ = exchange_.dispatch(tokens_.input());
    combine();
  }
  void call() {
    if (plan_.phase == Phase::combine) return combine();
    received_ = exchange_.dispatch(tokens_.input());
  }

 private:
  void combine() {
    exchange_.combine({.y = received_.x}, *received_.route,
                      {.x = out_.bf16_rows(case_.shape.hidden)});
    exchange_.wait();
  }

  World& world_;
  const Plan& plan_;
  test::ExchangeCase case_;
  ExpertParallel exchange_;
  const std::vector<test::Tokens> all_;
  const test::TokensOnDevice tokens_;
  const test::DeviceArray<uint16_t> out_;
  Received received_;
};

void survive(World& world, const Plan& plan, Board& board) {
  Exchanging exchanging(world, plan);
  exchanging.begin();
  world.barrier("all have exchanged");
  board.show(Sign::waiting);
  const auto start = steady_clock::now();
  std::optional<WaitFacts> facts;
  try {
    for (;;) exchanging.call();
  } catch (const PeerLost& error) {
    facts = error.facts;
  } catch (const PeerTimeout& error) {
    promise(plan.ending == Ending::stops, error.what());
    facts = error.facts;
  }
  const duration<double> took = steady_clock::now() - start;
  promise(facts->rank == plan.victim,
          fmt::format("rank {} blames rank {} in {}", world.rank(), facts->rank, facts->phase));
  const auto most = plan.ending == Ending::stops ? 2 * kTimeout + kSlack : kSlack;
  promise(took < most, fmt::format("it took {} s", took.count()));
  // Nobody leaves before all have named it: a goodbye would tell more than a wait.
  board.show(Sign::rebuilt);
  board.await(Sign::rebuilt, world.size() - 1);
}

void fault(const Plan& plan) {
  const uint16_t port = free_port();
  const auto size = static_cast<uint32_t>(plan.host_of.size());
  Board board;
  RankProcesses ranks(size, [&](uint32_t rank) {
    const auto world = connect_world({.port = port,
                                      .rank = rank,
                                      .size = size,
                                      .host_name = fmt::format("host-{}", plan.host_of[rank])},
                                     "host",
                                     {.timeout = plan.ending == Ending::stops ? kTimeout : kLong,
                                      .arena_bytes = size_t{16} << 20});
    promise(world->topology().hosts > 1, "one host");
    if (rank != plan.victim) return survive(*world, plan, board);
    {
      Exchanging exchanging(*world, plan);
      exchanging.begin();
      world->barrier("all have exchanged");
      // It takes part until the others wait.
      if (plan.ending == Ending::stops) {
        std::jthread stopper([&] {
          board.await(Sign::waiting, size - 1);
          std::this_thread::sleep_for(milliseconds(50));
          raise(SIGSTOP);
        });
        for (;;) exchanging.call();
      }
    }
  });
  for (uint32_t rank = 0; rank < size; ++rank) {
    if (rank == plan.victim && plan.ending == Ending::stops) continue;
    EXPECT_EQ(ranks.wait(rank), 0) << "rank " << rank;
  }
}

/// Two hosts of two ranks: the rank that shares neither the host nor the rail with the victim waits
/// for it through others.
TEST(Faults, OfHostsAStoppedRankIsNamedByAll) {
  for (const Phase phase : {Phase::dispatch, Phase::combine})
    fault({.host_of = {0, 0, 1, 1}, .victim = 2, .phase = phase, .ending = Ending::stops});
  fault({.host_of = {0, 1, 1, 2}, .victim = 0, .phase = Phase::dispatch, .ending = Ending::stops});
}

TEST(Faults, OfHostsARankThatLeavesIsNamedByAllAtOnce) {
  for (const Phase phase : {Phase::dispatch, Phase::combine})
    for (const uint32_t victim : {0u, 3u})
      fault({.host_of = {0, 0, 1, 1}, .victim = victim, .phase = phase, .ending = Ending::leaves});
  fault({.host_of = {0, 0, 0, 1, 1},
         .victim = 4,
         .phase = Phase::dispatch,
         .ending = Ending::leaves});
}

}  // namespace
}  // namespace tokenyard::testing
