/// Real processes that are killed or stopped in the middle of a kernel's wait: the others learn of
/// it in time, by name, leave nothing behind, and go on without.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "fabric/contract.hpp"
#include "fabric/worlds.hpp"

namespace tokenyard::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kTimeout{2000};
constexpr uint32_t kRanks = 4;

/// What shared memory and sockets of these processes could leave behind, by name.
std::set<std::string> leftovers(const std::vector<pid_t>& processes) {
  std::set<std::string> names;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm", none)) {
    const std::string name = entry.path().filename();
    if (name.find("tokenyard") != std::string::npos) names.insert(entry.path());
  }
  std::ifstream sockets("/proc/net/unix");
  for (std::string line; std::getline(sockets, line);) {
    for (const pid_t process : processes) {
      if (line.find(fmt::format("@tokenyard-{}-", process)) != std::string::npos) {
        names.insert(line);
      }
    }
  }
  return names;
}

/// How many arenas a process has mapped.
size_t arenas_mapped(pid_t process) {
  std::ifstream maps("/proc/" + std::to_string(process) + "/maps");
  size_t mapped = 0;
  for (std::string line; std::getline(maps, line);) {
    mapped += line.find("tokenyard-arena") != std::string::npos;
  }
  return mapped;
}

enum class Where { in_kernel, on_host };

/// What a survivor does: exchanges, then waits for a rank that has stopped answering, checks what
/// it is told and when, and goes on in a smaller world.
void survive(World& world, uint32_t victim, Where where, bool dead) {
  auto site = std::make_unique<ContractSite>(world);
  site->run(contract_exchange_kernel, 1, kTimeout);
  world.barrier("ready");
  const auto start = steady_clock::now();
  // A killed rank is noticed at once, so the wait may be long; a stopped one only by the deadline.
  const auto patience = dead ? milliseconds(60000) : kTimeout;
  uint32_t named = UINT32_MAX;
  std::string phase;
  try {
    if (where == Where::in_kernel) {
      for (uint32_t epoch = 2;; ++epoch) site->run(contract_exchange_kernel, epoch, patience);
    }
    for (;;) world.barrier("again");
  } catch (const PeerLost& error) {
    promise(dead, "a stopped rank is not lost");
    named = error.facts.rank;
    phase = error.facts.phase;
  } catch (const PeerTimeout& error) {
    promise(!dead, std::string("a killed rank was not noticed: ") + error.what());
    named = error.facts.rank;
    phase = error.facts.phase;
  }
  const auto took = steady_clock::now() - start;
  promise(named == victim, fmt::format("rank {} was blamed in {}", named, phase));
  promise(phase.rfind(where == Where::in_kernel ? "contract: " : "barrier again", 0) == 0, phase);
  promise(took < kTimeout + milliseconds(8000), "it took too long");

  const auto smaller = world.rebuild({victim});
  promise(smaller->size() == kRanks - 1, "one fewer");
  keeps_order(*smaller, 3);
}

void fault(Where where, int signal, uint32_t victim) {
  std::vector<pid_t> processes;
  const uint16_t port = free_port();
  const bool dead = signal == SIGKILL;
  {
    RankProcesses ranks(kRanks, [&](uint32_t rank) {
      WorldOptions options;
      options.timeout = rank == victim || !dead ? kTimeout : milliseconds(20000);
      options.arena_bytes = 8 << 20;
      const auto world =
          World::connect({.port = port, .rank = rank, .size = kRanks}, "host", options);
      if (rank != victim) return survive(*world, victim, where, dead);
      // The victim takes part until it is struck, by itself, in the midst of its peers' waits.
      ContractSite site(*world);
      site.run(contract_exchange_kernel, 1, kTimeout);
      world->barrier("ready");
      std::this_thread::sleep_for(milliseconds(50));
      raise(signal);
    });
    for (uint32_t rank = 0; rank < kRanks; ++rank) processes.push_back(ranks.process(rank));
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      if (rank == victim) continue;
      EXPECT_EQ(ranks.wait(rank), 0) << "rank " << rank;
    }
    if (dead) {
      EXPECT_EQ(ranks.wait(victim), 128 + SIGKILL);
    } else {
      EXPECT_EQ(arenas_mapped(processes[victim]), kRanks) << "it is still there";
    }
  }
  EXPECT_EQ(leftovers(processes), std::set<std::string>());
}

TEST(Faults, AKilledRankIsNamedInAKernel) {
  fault(Where::in_kernel, SIGKILL, 2);
}
TEST(Faults, RankZeroMayBeKilledToo) {
  fault(Where::in_kernel, SIGKILL, 0);
}
TEST(Faults, AKilledRankIsNamedOnTheHost) {
  fault(Where::on_host, SIGKILL, 1);
}
TEST(Faults, AStoppedRankIsNamedInAKernel) {
  fault(Where::in_kernel, SIGSTOP, 3);
}
TEST(Faults, AStoppedRankIsNamedOnTheHost) {
  fault(Where::on_host, SIGSTOP, 0);
}

/// A stopped rank that wakes after the others have gone on cannot disturb them.
TEST(Faults, AStoppedRankThatWakesIsOutside) {
  const uint16_t port = free_port();
  RankProcesses ranks(3, [&](uint32_t rank) {
    WorldOptions options;
    options.timeout = milliseconds(rank == 2 ? 1500 : 500);
    options.arena_bytes = 8 << 20;
    const auto world = World::connect({.port = port, .rank = rank, .size = 3}, "host", options);
    world->barrier("ready");
    if (rank == 2) {
      raise(SIGSTOP);
      // Awake again. What the others said before they gave up is there; a second answer is not.
      bool alone = false;
      try {
        world->barrier("hello?");
        world->barrier("is anybody there?");
      } catch (const PeerTimeout&) {
        alone = true;
      } catch (const PeerLost&) {
        alone = true;
      }
      promise(alone, "somebody answered");
      return;
    }
    try {
      world->barrier("hello?");
      promise(false, "the stopped rank answered");
    } catch (const PeerTimeout& error) {
      promise(error.facts.rank == 2, error.what());
    }
    const auto smaller = world->rebuild({2});
    keeps_order(*smaller, 2);
    std::this_thread::sleep_for(milliseconds(800));  // The sleeper wakes meanwhile.
    keeps_order(*smaller, 20);
  });
  std::this_thread::sleep_for(milliseconds(1500));
  ranks.signal(2, SIGCONT);
  for (uint32_t rank = 0; rank < 3; ++rank) EXPECT_EQ(ranks.wait(rank), 0) << "rank " << rank;
}

/// Every process of the world is killed at once: nothing of it remains anywhere.
TEST(Faults, NothingIsLeftWhenAllAreKilled) {
  std::vector<pid_t> processes;
  const uint16_t port = free_port();
  {
    RankProcesses ranks(3, [&](uint32_t rank) {
      const auto world =
          World::connect({.port = port, .rank = rank, .size = 3}, "host", {.arena_bytes = 8 << 20});
      world->barrier("ready");
      raise(SIGSTOP);
    });
    for (uint32_t rank = 0; rank < 3; ++rank) processes.push_back(ranks.process(rank));
    for (uint32_t rank = 0; rank < 3; ++rank) {
      const auto until = steady_clock::now() + std::chrono::seconds(20);
      while (arenas_mapped(ranks.process(rank)) < 3 && steady_clock::now() < until) {
        std::this_thread::sleep_for(milliseconds(5));
      }
      ASSERT_EQ(arenas_mapped(ranks.process(rank)), 3u);
    }
    for (uint32_t rank = 0; rank < 3; ++rank) ranks.signal(rank, SIGKILL);
    for (uint32_t rank = 0; rank < 3; ++rank) EXPECT_EQ(ranks.wait(rank), 128 + SIGKILL);
  }
  EXPECT_EQ(leftovers(processes), std::set<std::string>());
}

}  // namespace
}  // namespace tokenyard::testing
