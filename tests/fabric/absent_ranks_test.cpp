// Worlds in which some slots are empty: their ranks count, and take part in nothing.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>

#include "fabric/arena.hpp"
#include "fabric/collective_step.hpp"
#include "fabric/exchange_window_addresses.hpp"
#include "fabric/fd_exchange.hpp"
#include "fabric/free_port.hpp"
#include "fabric/in_process_mesh.hpp"
#include "fabric/manual_accelerator.hpp"
#include "fabric/promise.hpp"
#include "fabric/worlds.hpp"
#include "world/in_process.hpp"
#include "world/processes.hpp"

namespace tokenyard {
namespace {

using testing::promise;

constexpr uint32_t kRanks = 4;
/// Ample time for what should happen at once, on any machine.
constexpr std::chrono::seconds kSoon{60};
const WorldOptions kOptions{.timeout = kSoon, .arena_bytes = 1 << 20};

/// The ranks that are absent in turn: the first, one in the middle, the last, and all but one.
const std::vector<std::vector<uint32_t>> kAbsences{{0}, {1}, {3}, {0, 1, 3}};

bool holds_rank(const std::vector<uint32_t>& ranks, uint32_t rank) {
  return std::ranges::count(ranks, rank) != 0;
}

/// Calls `body` on the thread of each present rank, with its end of the bootstrap.
void on_present_ranks(const std::vector<uint32_t>& absent,
                      const std::function<void(Bootstrap&, AbortFlag&, TimePoint)>& body) {
  auto ends = InProcessMesh::make(kRanks);
  // An end that says goodbye, as the process that filled the slot has done.
  for (const uint32_t rank : absent) ends[rank].reset();
  on_every_rank(kRanks, [&](uint32_t rank) {
    if (holds_rank(absent, rank)) return;
    ManualAccelerator accelerator;
    AbortFlag abort_flag(accelerator, kRanks);
    Bootstrap talk(ends[rank], Membership::of(*ends[rank], absent), accelerator, abort_flag);
    body(talk, abort_flag, accelerator.now() + kSoon);
  });
}

TEST(AbsentRanks, TakeNoPartInTheBootstrap) {
  for (const auto& absent : kAbsences) {
    on_present_ranks(absent, [&](Bootstrap& talk, AbortFlag& abort_flag, TimePoint until) {
      const std::vector<std::byte> mine(1 + talk.rank(), static_cast<std::byte>(talk.rank()));
      const auto all = talk.all_gather(mine, "sizes", until);
      const auto objects = talk.share(std::make_shared<uint32_t>(talk.rank()), "objects", until);
      const auto numbers = gather(talk, 10 + talk.rank(), "numbers", until);
      const auto steps = collective_step(talk, "a step", until, [&] { return mine; });
      std::vector<uint32_t> awaited;
      talk.await_each("each", until, [&](uint32_t rank) {
        awaited.push_back(rank);
        return true;
      });
      talk.barrier("done", until);
      ASSERT_EQ(all.size(), kRanks);
      for (uint32_t rank = 0; rank < kRanks; ++rank) {
        const bool here = !holds_rank(absent, rank);
        EXPECT_EQ(talk.present(rank), here);
        EXPECT_EQ(all[rank].size(), here ? rank + 1 : 0);
        EXPECT_EQ(objects[rank] != nullptr, here);
        EXPECT_EQ(numbers[rank], here ? 10 + rank : 0);
        EXPECT_EQ(steps[rank].size(), here ? rank + 1 : 0);
        EXPECT_EQ(holds_rank(awaited, rank), here && rank != talk.rank());
      }
      EXPECT_TRUE(abort_flag.gone_ranks().empty());
      EXPECT_EQ(*abort_flag.word(), kNoAbort);
    });
  }
}

/// A rank that never was here is not lost, whatever becomes of its slot; one that goes later is.
TEST(AbsentRanks, AreNotLost) {
  const auto ends = InProcessMesh::make(kRanks);
  ManualAccelerator accelerator;
  AbortFlag abort_flag(accelerator, kRanks);
  const Bootstrap talk(ends[0], Membership::of(*ends[0], {1}), accelerator, abort_flag);
  ends[1]->vanish();
  EXPECT_TRUE(abort_flag.gone_ranks().empty());
  ends[3]->vanish();
  EXPECT_EQ(abort_flag.lost_ranks(), std::vector<uint32_t>{3});
}

TEST(AbsentRanks, AreNotInTheWorldThatIsRebuilt) {
  on_present_ranks({1}, [](Bootstrap& talk, AbortFlag&, TimePoint until) {
    // Naming the absent one changes nothing.
    for (const std::vector<uint32_t>& without : {std::vector<uint32_t>{}, {1}}) {
      Membership next = talk.membership().without(without);
      next.generation = talk.agree_on_generation(next.slots, "rebuild", until, {});
      EXPECT_EQ(next.slots, (std::vector<uint32_t>{0, 2, 3}));
      EXPECT_EQ(next.rank, talk.rank() == 0 ? 0 : talk.rank() - 1);
      talk.barrier("all have agreed", until);
    }
  });
}

TEST(AbsentRanks, ExchangeNoDescriptors) {
  on_present_ranks({1}, [](Bootstrap& talk, AbortFlag&, TimePoint until) {
    const auto all = exchange_fds(talk, STDIN_FILENO, "files", until);
    for (uint32_t rank = 0; rank < kRanks; ++rank) EXPECT_EQ(bool{all[rank]}, rank != 1);
    talk.barrier("all have looked", until);
  });
}

/// Stores to every peer that is there and reads what they stored.
void check_world(World& world, const std::vector<uint32_t>& absent) {
  const Topology& topology = world.topology();
  promise(world.size() == kRanks, "absent ranks count");
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    const bool here = !holds_rank(absent, rank);
    const Reach reach = topology.peers[rank].reach;
    promise(is_present(world, rank) == here, "presence");
    promise((reach == Reach::none) == !here, "reach");
    promise(here || topology.peers[rank].why_not == "its slot is empty", "why not");
    promise((topology.host_of[rank] == kNoHost) == !here, "hosts");
    promise((arena_of(world).base_of(rank) != nullptr) == here, "arenas");
  }
  promise(topology.hosts == 1, "one host");
  const std::string text = topology.text();
  promise(text.find("   -  none        no load/store: its slot is empty") != std::string::npos,
          "the table names empty slots: " + text);
  ArenaBlock window = arena_of(world).allocate(256, {});
  auto* const words = reinterpret_cast<uint32_t*>(window.data());
  std::fill_n(words, kRanks, 0);
  exchange_window_addresses(world, window, "windows", [&](const auto& windows) {
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      promise((windows[rank] != nullptr) == !holds_rank(absent, rank), "windows");
      if (windows[rank] != nullptr)
        reinterpret_cast<uint32_t*>(windows[rank])[world.rank()] = 1 + world.rank();
    }
  });
  world.barrier("all have stored");
  for (uint32_t rank = 0; rank < kRanks; ++rank)
    promise(words[rank] == (holds_rank(absent, rank) ? 0 : 1 + rank), "stores of peers");
  promise(world.lost().empty(), "an absent rank is not lost");
  world.barrier("all have looked");
}

TEST(AbsentRanks, OfThreadsHaveNoMemory) {
  for (const auto& absent : kAbsences) {
    const auto worlds = in_process_without(absent, kRanks, "host", kOptions);
    on_every_rank(kRanks, [&](uint32_t rank) {
      ASSERT_EQ(worlds[rank] == nullptr, holds_rank(absent, rank));
      if (worlds[rank]) check_world(*worlds[rank], absent);
    });
  }
}

TEST(AbsentRanks, LeaveTheWorldOfThreadsThatIsRebuilt) {
  const auto worlds = in_process_without({1}, kRanks, "host", kOptions);
  on_every_rank(kRanks, [&](uint32_t rank) {
    if (!worlds[rank]) return;
    const auto next = worlds[rank]->rebuild({});
    EXPECT_EQ(next->size(), kRanks - 1);
    EXPECT_EQ(next->left_out(), std::vector<uint32_t>{1});
    for (uint32_t peer = 0; peer < next->size(); ++peer) EXPECT_TRUE(is_present(*next, peer));
    next->barrier("all have looked");
  });
}

/// Simulated hosts: an absent rank is on none, and no network reaches it.
TEST(AbsentRanks, AreOnNoHost) {
  WorldOptions options = kOptions;
  options.hosts = 2;
  const auto worlds = in_process_without({2}, kRanks, "host", options);
  on_every_rank(kRanks, [&](uint32_t rank) {
    if (!worlds[rank]) return;
    const Topology& topology = worlds[rank]->topology();
    EXPECT_EQ(topology.host_of, (std::vector<uint32_t>{0, 0, kNoHost, 1}));
    EXPECT_EQ(topology.hosts, 2u);
    EXPECT_EQ(topology.peers[2].reach, Reach::none);
    EXPECT_EQ(topology.peers[rank == 3 ? 0 : 3].reach, Reach::put_signal);
    worlds[rank]->barrier("all have looked");
  });
}

/// The process of the empty slot has been here and ends: nobody notices, and a rebuilt world is
/// without it.
TEST(AbsentRanks, OfProcessesHaveNoMemory) {
  const uint16_t port = free_port();
  RankProcesses processes(kRanks, [&](uint32_t rank) {
    const auto job = connect_job({.port = port, .rank = rank, .size = kRanks}, kOptions);
    const std::vector<uint32_t> absent{1};
    if (rank == 1) return;
    const auto world = job->world("host", kOptions);
    check_world(*world, absent);
    const auto next = world->rebuild({});
    promise(next->size() == kRanks - 1, "the rebuilt world is without the empty slot");
    promise(next->left_out() == absent, "and says so");
    next->barrier("all have looked");
  });
  for (uint32_t rank = 0; rank < kRanks; ++rank) EXPECT_EQ(processes.wait(rank), 0);
}

}  // namespace
}  // namespace tokenyard
