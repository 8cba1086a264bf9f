/// Real processes that are killed or stopped during a kernel's wait: the others learn of it in time
/// and by name, leak nothing, and continue without the victim.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <span>
#include <thread>

#include "fabric/contract.hpp"
#include "fabric/meeting_place.hpp"
#include "fabric/worlds.hpp"
#include "faults/board.hpp"

namespace tokenyard::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

/// Deadline of a wait for a stopped rank.
constexpr milliseconds kTimeout{3000};
/// Limit for everything that should end at once, on any machine.
constexpr milliseconds kAmple{60000};
constexpr uint32_t kRanks = 4;

/// Returns the names of shared memory and sockets that these processes could leak.
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

/// Returns the number of arenas that a process has mapped.
size_t arenas_mapped(pid_t process) {
  std::ifstream maps("/proc/" + std::to_string(process) + "/maps");
  size_t mapped = 0;
  for (std::string line; std::getline(maps, line);) {
    mapped += line.find("tokenyard-arena") != std::string::npos;
  }
  return mapped;
}

enum class Where { in_kernel, on_host };

/// Runs a survivor: it exchanges, waits for a rank that no longer answers, checks the error and its
/// time, and continues in a smaller world.
void survive(World& world, Board& board, uint32_t victim, Where where, bool dead) {
  auto site = std::make_unique<ContractSite>(world);
  site->run(contract_exchange_kernel, 1, world.timeout());
  world.barrier("ready");
  board.show(Sign::waiting);
  const auto start = steady_clock::now();
  // A killed rank is noticed at once, so the deadline may be long; a stopped one only by it.
  const auto timeout = dead ? kAmple : kTimeout;
  uint32_t named = UINT32_MAX;
  std::string phase;
  try {
    if (where == Where::in_kernel) {
      for (uint32_t epoch = 2;; ++epoch) site->run(contract_exchange_kernel, epoch, timeout);
    }
    for (;;) world.barrier("again");
  } catch (const PeerLost& error) {
    // Of a rank that has stopped, only where another one has given up before this one did.
    promise(dead || steady_clock::now() - start > kTimeout / 2, "a stopped rank is no lost one");
    named = error.facts.rank;
    phase = error.facts.phase;
  } catch (const PeerTimeout& error) {
    promise(!dead, std::string("a killed rank was not detected: ") + error.what());
    named = error.facts.rank;
    phase = error.facts.phase;
  }
  const auto took = steady_clock::now() - start;
  promise(named == victim, fmt::format("rank {} was blamed in {}", named, phase));
  promise(phase.rfind(where == Where::in_kernel ? "contract: " : "barrier again", 0) == 0, phase);
  promise(took < kTimeout + kAmple / 2, "the error came too late");

  const auto smaller = world.rebuild({victim});
  promise(smaller->size() == kRanks - 1, "the rebuilt world must have one rank fewer");
  keeps_order(*smaller, 3);
}

void fault(Where where, int signal, uint32_t victim) {
  std::vector<pid_t> processes;
  const uint16_t port = free_port();
  const bool dead = signal == SIGKILL;
  Board board;
  {
    RankProcesses ranks(kRanks, [&](uint32_t rank) {
      WorldOptions options;
      // Waits on the host use the world's timeout.
      options.timeout = !dead && where == Where::on_host ? kTimeout : kAmple;
      options.arena_bytes = 8 << 20;
      board.show(Sign::started);
      board.await(Sign::started, kRanks);
      const auto world =
          connect_world({.port = port, .rank = rank, .size = kRanks}, "host", options);
      if (rank != victim) return survive(*world, board, victim, where, dead);
      // The victim takes part until it is killed or stopped, during its peers' waits.
      ContractSite site(*world);
      site.run(contract_exchange_kernel, 1, world->timeout());
      world->barrier("ready");
      board.await(Sign::waiting, kRanks - 1);
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
      EXPECT_EQ(arenas_mapped(processes[victim]), kRanks) << "the stopped rank must still exist";
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

/// Runs a rank that stops while the others await it, and is woken after they have continued.
void sleep_and_wake(World& world, ContractSite& site, Board& board) {
  // Its last message may still be in flight when it leaves a barrier.
  board.await(Sign::waiting, world.size() - 1);
  raise(SIGSTOP);
  // Messages that the others sent before they gave up may still arrive, but no second answer. The
  // first failing call reports that this rank was out of touch, and blames no other rank.
  bool outside = false;
  try {
    site.run(contract_exchange_kernel, 2, kAmple);
    promise(site.wrong() == 0, "the others' earlier words were lost");
    world.barrier("is anybody there?");
  } catch (const OutOfTouch&) {
    outside = true;
  }
  promise(outside, "a rank that was left out got an answer");
  board.show(Sign::sleeper_done);
}

/// Exchanges until the sleeper has finished. All ranks stop at the same step, when the first one
/// knows.
void exchange_meanwhile(World& world, const Board& board) {
  const auto until = steady_clock::now() + kAmple;
  for (bool done = false; !done;) {
    keeps_order(world, 4);
    promise(steady_clock::now() < until, "the sleeper was not done in time");
    const auto mine = static_cast<std::byte>(board.shown(Sign::sleeper_done));
    done = world.all_gather({&mine, 1}, "the sleeper").front().front() != std::byte{0};
  }
}

/// A stopped rank that wakes after the others have continued cannot disturb them.
TEST(Faults, AStoppedRankThatWakesIsOutside) {
  constexpr uint32_t kAll = 3, kSleeper = 2;
  const uint16_t port = free_port();
  Board board;
  RankProcesses ranks(kAll, [&](uint32_t rank) {
    board.show(Sign::started);
    board.await(Sign::started, kAll);
    const WorldOptions options{.timeout = rank == kSleeper ? kTimeout : kAmple,
                               .arena_bytes = 8 << 20};
    const auto world = connect_world({.port = port, .rank = rank, .size = kAll}, "host", options);
    ContractSite site(*world);
    site.run(contract_exchange_kernel, 1, world->timeout());
    world->barrier("ready");
    if (rank == kSleeper) return sleep_and_wake(*world, site, board);
    board.show(Sign::waiting);
    try {
      site.run(contract_exchange_kernel, 2, kTimeout);
      promise(false, "the stopped rank answered");
    } catch (const PeerTimeout& error) {
      promise(error.facts.rank == kSleeper, error.what());
    } catch (const PeerLost& error) {
      // The other rank was first at its deadline, and the agreement has come in the same moment.
      promise(error.facts.rank == kSleeper, error.what());
    }
    const auto smaller = world->rebuild({kSleeper});
    keeps_order(*smaller, 2);
    board.show(Sign::rebuilt);
    exchange_meanwhile(*smaller, board);
  });
  EXPECT_TRUE(ranks.stops(kSleeper));
  board.await(Sign::rebuilt, kAll - 1);
  ranks.signal(kSleeper, SIGCONT);
  for (uint32_t rank = 0; rank < kAll; ++rank) EXPECT_EQ(ranks.wait(rank), 0) << "rank " << rank;
}

using Members = std::vector<uint32_t>;

std::unique_ptr<World> connect_to(uint16_t port, uint32_t rank, uint32_t size,
                                  std::chrono::nanoseconds timeout, Board& board) {
  board.show(Sign::started);
  board.await(Sign::started, size);
  auto world = connect_world({.port = port, .rank = rank, .size = size}, "host",
                             {.timeout = timeout, .arena_bytes = 1 << 20});
  world->barrier("all are here");
  return world;
}

/// Returns which ranks of the first world are in this one; `mine` is this rank's number there.
Members members_of(World& world, uint32_t mine) {
  const auto bytes = std::as_bytes(std::span(&mine, 1));
  Members members;
  for (const auto& theirs : world.all_gather(bytes, "who is here")) {
    std::memcpy(&members.emplace_back(), theirs.data(), sizeof(uint32_t));
  }
  return members;
}

/// Waits until a rank is noticed to be gone. Throws what the wait for it does unless that is
/// PeerLost.
void await_a_loss(World& world) {
  try {
    for (;;) world.barrier("until a rank is gone");
  } catch (const PeerLost&) {
  }
}

/// Two ranks die at once, and each survivor names only one of them, not the same: one call each
/// makes one world.
TEST(Faults, SurvivorsNeedNotNameTheSameRanks) {
  constexpr uint32_t kAll = 5;
  const Members killed{1, 3}, survivors{0, 2, 4};
  const uint16_t port = free_port();
  Board board;
  RankProcesses ranks(kAll, [&](uint32_t rank) {
    const auto world = connect_to(port, rank, kAll, kAmple, board);
    board.show(Sign::waiting);
    if (std::ranges::count(killed, rank) != 0) {
      board.await(Sign::waiting, kAll);
      raise(SIGKILL);
    }
    const uint32_t named = rank == 2 ? 3 : 1;
    while (std::ranges::count(world->lost(), named) == 0) std::this_thread::yield();
    const auto start = steady_clock::now();
    const auto smaller = world->rebuild({named});
    promise(steady_clock::now() - start < kAmple / 4, "it was waited for in vain");
    promise(members_of(*smaller, rank) == survivors, "not all survivors, or not only they");
    promise(smaller->left_out() == killed, "it tells who was left out");
    promise(smaller->lost().empty(), "nobody of the new world is lost");
    keeps_order(*smaller, 3);
  });
  for (const uint32_t rank : killed) EXPECT_EQ(ranks.wait(rank), 128 + SIGKILL);
  for (const uint32_t rank : survivors) EXPECT_EQ(ranks.wait(rank), 0) << "rank " << rank;
}

/// Half of the ranks goes on: memory that they share is the witness, whoever made it.
TEST(Faults, OneOfTwoGoesOn) {
  for (const uint32_t victim : {0u, 1u}) {
    const uint16_t port = free_port();
    Board board;
    RankProcesses ranks(2, [&](uint32_t rank) {
      const auto world = connect_to(port, rank, 2, kAmple, board);
      if (rank == victim) raise(SIGKILL);
      await_a_loss(*world);
      const auto alone = world->rebuild({victim});
      promise(alone->size() == 1 && alone->left_out() == Members{victim}, "it is alone");
      keeps_order(*alone, 2);
    });
    EXPECT_EQ(ranks.wait(victim), 128 + SIGKILL);
    EXPECT_EQ(ranks.wait(1 - victim), 0);
  }
}

/// A living rank may be left out too, also by one of two. If each leaves out the other, one goes
/// on.
TEST(Faults, OneOfTwoMayLeaveOutALivingOne) {
  for (const Members& callers : {Members{0}, Members{1}, Members{0, 1}}) {
    const uint16_t port = free_port();
    Board board;
    RankProcesses ranks(2, [&](uint32_t rank) {
      const auto world = connect_to(port, rank, 2, kAmple, board);
      const bool calls = std::ranges::count(callers, rank) != 0;
      try {
        if (!calls) await_a_loss(*world);
        const auto alone = world->rebuild({1 - rank});
        promise(calls && alone->size() == 1, "it is alone");
        board.show(Sign::rebuilt);
      } catch (const OutOfTouch& error) {
        promise(error.left_out && callers != Members{rank}, error.what());
      }
    });
    for (uint32_t rank = 0; rank < 2; ++rank) EXPECT_EQ(ranks.wait(rank), 0) << "rank " << rank;
    EXPECT_EQ(board.shown(Sign::rebuilt), 1u);
  }
}

/// A rank dies while the others rebuild without another one. Those that have left the call meet the
/// others, which have begun it anew, in the next one.
TEST(Faults, OneMoreMayDieDuringARebuild) {
  constexpr uint32_t kAll = 5;
  const Members survivors{0, 2, 3};
  for (int delay_ms = 0; delay_ms < 24; delay_ms += 4) {
    const uint16_t port = free_port();
    Board board;
    RankProcesses ranks(kAll, [&](uint32_t rank) {
      const auto world = connect_to(port, rank, kAll, kAmple, board);
      board.show(Sign::waiting);
      board.await(Sign::waiting, kAll);
      if (rank == 1) raise(SIGKILL);
      std::jthread killer;
      if (rank == 4) {
        killer = std::jthread([delay_ms] {
          std::this_thread::sleep_for(milliseconds(delay_ms));
          raise(SIGKILL);
        });
      }
      // Rank 4 may die before the new world is made, after, or while only some have left the call.
      auto smaller = world->rebuild({1});
      if (smaller->size() == 4) {
        await_a_loss(*smaller);
        smaller = smaller->rebuild({3});
      }
      promise(members_of(*smaller, rank) == survivors, "three are left");
    });
    EXPECT_EQ(ranks.wait(1), 128 + SIGKILL);
    EXPECT_EQ(ranks.wait(4), 128 + SIGKILL);
    for (const uint32_t rank : survivors) EXPECT_EQ(ranks.wait(rank), 0) << "rank " << rank;
  }
}

/// A rank is stopped for longer than a silence, and calls `rebuild` itself when it wakes. It makes
/// no world of its own.
TEST(Faults, AStoppedRankThatWakesMakesNoWorld) {
  constexpr uint32_t kAll = 3, kSleeper = 0;
  const uint16_t port = free_port();
  Board board;
  RankProcesses ranks(kAll, [&](uint32_t rank) {
    const auto world = connect_to(port, rank, kAll, kAmple, board);
    if (rank == kSleeper) {
      raise(SIGSTOP);
      bool outside = false;
      try {
        (void)world->rebuild({1, 2});
      } catch (const OutOfTouch& error) {
        outside = error.left_out;
      }
      promise(outside, "it was left out, and must be told so");
      board.show(Sign::sleeper_done);
      return;
    }
    // Nobody here names it: its silence is enough.
    const auto start = steady_clock::now();
    await_a_loss(*world);
    promise(steady_clock::now() - start < kAmple / 2, "silence was not enough");
    const auto smaller = world->rebuild({kSleeper});
    promise(members_of(*smaller, rank) == Members{1, 2}, "two are left");
    board.show(Sign::rebuilt);
    exchange_meanwhile(*smaller, board);
  });
  EXPECT_TRUE(ranks.stops(kSleeper));
  board.await(Sign::rebuilt, kAll - 1);
  ranks.signal(kSleeper, SIGCONT);
  for (uint32_t rank = 0; rank < kAll; ++rank) EXPECT_EQ(ranks.wait(rank), 0) << "rank " << rank;
}

/// Too few ranks to agree on anything: they are told so by their deadline.
TEST(Faults, AMinorityIsToldThatItIsOne) {
  constexpr uint32_t kAll = 5;
  for (const int signal : {SIGKILL, SIGSTOP}) {
    const uint16_t port = free_port();
    Board board;
    RankProcesses ranks(kAll, [&](uint32_t rank) {
      const auto world = connect_to(port, rank, kAll, kTimeout, board);
      board.show(Sign::waiting);
      board.await(Sign::waiting, kAll);
      if (rank < 3) raise(signal);
      const auto start = steady_clock::now();
      bool told = false;
      try {
        (void)world->rebuild({0, 1, 2});
      } catch (const QuorumLost& error) {
        told = error.needed == 3 && error.answering == Members{3, 4};
      }
      promise(told, "two of five are too few");
      promise(steady_clock::now() - start < kTimeout + kAmple / 4, "it took too long");
    });
    for (const uint32_t rank : {3u, 4u}) EXPECT_EQ(ranks.wait(rank), 0) << "rank " << rank;
  }
}

/// All processes of the world are killed at once and leak nothing.
TEST(Faults, NothingIsLeftWhenAllAreKilled) {
  std::vector<pid_t> processes;
  const uint16_t port = free_port();
  Board board;
  {
    RankProcesses ranks(3, [&](uint32_t rank) {
      const auto world =
          connect_world({.port = port, .rank = rank, .size = 3}, "host", {.arena_bytes = 8 << 20});
      world->barrier("ready");
      board.show(Sign::waiting);
      board.await(Sign::waiting, 3);
      raise(SIGSTOP);
    });
    for (uint32_t rank = 0; rank < 3; ++rank) processes.push_back(ranks.process(rank));
    for (uint32_t rank = 0; rank < 3; ++rank) {
      ASSERT_TRUE(ranks.stops(rank));
      ASSERT_EQ(arenas_mapped(ranks.process(rank)), 3u);
    }
    for (uint32_t rank = 0; rank < 3; ++rank) ranks.signal(rank, SIGKILL);
    for (uint32_t rank = 0; rank < 3; ++rank) EXPECT_EQ(ranks.wait(rank), 128 + SIGKILL);
  }
  EXPECT_EQ(leftovers(processes), std::set<std::string>());
}

}  // namespace
}  // namespace tokenyard::testing
