/// Processes of a job meet, exchange messages, and notice who leaves.
#include "job/process_ranks.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <asio.hpp>
#include <atomic>
#include <latch>
#include <list>
#include <string>
#include <thread>

#include "fabric/free_port.hpp"
#include "fabric/meeting_place.hpp"
#include "fabric/ranks.hpp"
#include "job/job_state.hpp"
#include "simt/host_accelerator.hpp"
#include "world/processes.hpp"

namespace tokenyard {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

/// Ample time for what should happen at once, on any machine.
constexpr milliseconds kSoon{30'000};

std::shared_ptr<ProcessRanks> connect(const MeetingPlace& where, milliseconds time = kSoon) {
  const auto job = connect_job(where, {.timeout = time});
  return {job, &job->state()->ranks()};
}

MeetingPlace place(uint16_t port, uint32_t rank, uint32_t size) {
  return {.port = port, .rank = rank, .size = size, .secret = "of this test"};
}

template <class Condition>
bool soon(Condition condition) {
  simt::HostAccelerator accelerator([] {});
  return accelerator.wait_until(accelerator.now() + kSoon, condition);
}

/// Waits for a message of the peer; returns nothing if it does not come in time.
std::optional<Message> receive(ProcessRanks& ranks, uint32_t from, uint64_t sequence) {
  std::optional<Message> message;
  soon([&] {
    message = ranks.mailbox().take(from, 1, sequence);
    return message.has_value();
  });
  return message;
}

PeerState state_of(ProcessRanks& ranks, uint32_t peer) {
  soon([&] { return ranks.mailbox().state(peer) != PeerState::present; });
  return ranks.mailbox().state(peer);
}

/// A connection from a program that is no rank.
class Intruder {
 public:
  explicit Intruder(uint16_t port) : socket_(io_) {
    const asio::ip::tcp::endpoint door(asio::ip::address_v4::loopback(), port);
    const auto until = Clock::now() + kSoon;
    while (Clock::now() < until) {
      asio::error_code error;
      socket_.connect(door, error);
      if (!error) return;
      socket_.close();
      std::this_thread::sleep_for(milliseconds(2));
    }
    throw std::runtime_error("nothing listens at the rendezvous's port");
  }
  void say(const std::string& words) {
    asio::error_code ignored;
    asio::write(socket_, asio::buffer(words), ignored);
  }

 private:
  asio::io_context io_;
  asio::ip::tcp::socket socket_;
};

TEST(ProcessRanks, EveryPairExchangesMessages) {
  constexpr uint32_t kRanks = 5;
  const uint16_t port = free_port();
  on_every_rank(kRanks, [&](uint32_t rank) {
    const auto ranks = connect(place(port, rank, kRanks));
    const std::vector<std::byte> large(3 << 20, static_cast<std::byte>(rank));
    for (uint32_t peer = 0; peer < kRanks; ++peer) {
      if (peer == rank) continue;
      ranks->send(peer, {.generation = 1, .sequence = 1, .what = "small"});
      ranks->send(peer, {.generation = 1, .sequence = 2, .what = "large", .bytes = large});
    }
    for (uint32_t peer = 0; peer < kRanks; ++peer) {
      if (peer == rank) continue;
      EXPECT_EQ(receive(*ranks, peer, 1)->what, "small");
      EXPECT_EQ(receive(*ranks, peer, 2)->bytes,
                std::vector<std::byte>(3 << 20, static_cast<std::byte>(peer)));
    }
  });
}

TEST(ProcessRanks, MessageOfTheLargestSizeArrives) {
  const uint16_t port = free_port();
  on_every_rank(2, [&](uint32_t rank) {
    const auto ranks = connect(place(port, rank, 2));
    const std::vector<std::byte> largest(size_t{64} << 20, std::byte{7});
    ranks->send(1 - rank, {.generation = 1, .sequence = 1, .what = "all", .bytes = largest});
    const auto theirs = receive(*ranks, 1 - rank, 1);
    ASSERT_TRUE(theirs);
    EXPECT_EQ(theirs->bytes.size(), largest.size());
    EXPECT_NE(state_of(*ranks, 1 - rank), PeerState::lost);  // It may have left.
    Message larger{.what = "too large", .bytes = largest};
    larger.bytes.push_back({});
    EXPECT_THROW(ranks->send(1 - rank, larger), InvalidArgument);
  });
}

TEST(ProcessRanks, ARankAloneMeetsNobody) {
  EXPECT_EQ(connect({.rank = 0, .size = 1})->slots(), 1u);
}

TEST(ProcessRanks, NamesTheRankThatNeverComes) {
  const uint16_t port = free_port();
  const auto failures = run_ranks(3, [&](uint32_t rank) {
    if (rank != 1) connect(place(port, rank, 3), milliseconds(2000));
  });
  for (const uint32_t rank : {0u, 2u}) {
    EXPECT_TRUE(holds<PeerTimeout>(failures[rank], [](const PeerTimeout& error) {
      EXPECT_EQ(error.facts.rank, 1u);
      EXPECT_THAT(error.facts.phase, HasSubstr("rendezvous: rank 1 has not come"));
    }));
  }
}

TEST(ProcessRanks, NamesRankZeroWhereNobodyListens) {
  const auto failures =
      run_ranks(1, [&](uint32_t) { connect(place(free_port(), 1, 2), milliseconds(1000)); });
  EXPECT_TRUE(holds<PeerTimeout>(failures[0], [](const PeerTimeout& error) {
    EXPECT_EQ(error.facts.rank, 0u);
    EXPECT_THAT(error.facts.phase, HasSubstr("rendezvous: connect to rank 0 at 127.0.0.1:"));
    EXPECT_THAT(error.facts.phase, HasSubstr("refused"));
  }));
}

TEST(ProcessRanks, RefusesADuplicateAndGoesOn) {
  const uint16_t port = free_port();
  std::atomic<uint32_t> refused = 0;
  std::latch all_met(3);
  on_every_rank(3, [&](uint32_t who) {
    std::shared_ptr<ProcessRanks> ranks;
    // Two come as rank 1. The first is refused, and comes again as rank 2.
    try {
      ranks = connect(place(port, who == 0 ? 0 : 1, 3));
    } catch (const InvalidArgument& error) {
      EXPECT_EQ(error.argument, "rank");
      ++refused;
      ranks = connect(place(port, 2, 3));
    }
    all_met.arrive_and_wait();
  });
  EXPECT_EQ(refused, 1u);
}

TEST(ProcessRanks, SizesThatDifferAreNamed) {
  const uint16_t port = free_port();
  const auto failures = run_ranks(
      2, [&](uint32_t rank) { connect(place(port, rank, 2 + rank), milliseconds(2000)); });
  const bool named = std::ranges::any_of(failures, [](const std::exception_ptr& failure) {
    return holds<InvalidArgument>(
        failure, [](const InvalidArgument& error) { EXPECT_EQ(error.argument, "size"); });
  });
  EXPECT_TRUE(named);
}

TEST(ProcessRanks, WithoutTheSecretNobodyJoins) {
  const uint16_t port = free_port();
  const auto failures = run_ranks(2, [&](uint32_t rank) {
    MeetingPlace where = place(port, rank, 2);
    if (rank == 1) where.secret = "a guess";
    connect(where, milliseconds(1000));
  });
  EXPECT_TRUE(holds<PeerTimeout>(failures[0], [](const PeerTimeout& error) {
    EXPECT_THAT(error.facts.phase, HasSubstr("rank 1 has not come"));
  }));
  EXPECT_TRUE(holds<PeerTimeout>(failures[1], [](const PeerTimeout& error) {
    EXPECT_THAT(error.facts.phase, HasSubstr("secret"));
  }));
}

TEST(ProcessRanks, WhoIsGivenNoSecretUsesThatOfTheHost) {
  const uint16_t port = free_port();
  on_every_rank(2, [&](uint32_t rank) {
    const auto ranks = connect({.port = port, .rank = rank, .size = 2});
    ranks->send(1 - rank, {.generation = 1, .sequence = 1, .what = "here"});
    EXPECT_TRUE(receive(*ranks, 1 - rank, 1));
  });
}

TEST(ProcessRanks, StrangersStallNobody) {
  const uint16_t port = free_port();
  std::shared_ptr<ProcessRanks> host;
  std::jthread hosting([&] { host = connect(place(port, 0, 2)); });
  // Each has two seconds to authenticate: served one after the other, they would take longer than
  // any rank here waits.
  std::list<Intruder> silent;
  while (silent.size() < 20) silent.emplace_back(port);
  Intruder browser(port);
  browser.say("GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: somebody with much to say\r\n\r\n");
  { const Intruder gone(port); }
  const auto guest = connect(place(port, 1, 2));
  hosting.join();
  guest->send(0, {.generation = 1, .sequence = 1, .what = "here"});
  EXPECT_TRUE(receive(*host, 1, 1));
}

TEST(ProcessRanks, ARankMayComeBackBeforeEverybodyIsThere) {
  const uint16_t port = free_port();
  std::latch gave_up(1), all_met(3);
  on_every_rank(3, [&](uint32_t rank) {
    if (rank == 1) {
      EXPECT_THROW(connect(place(port, 1, 3), milliseconds(300)), PeerTimeout);
      gave_up.count_down();
    }
    if (rank == 2) gave_up.wait();
    const auto ranks = connect(place(port, rank, 3));
    all_met.arrive_and_wait();
  });
}

TEST(ProcessRanks, OneWorldAfterTheOtherOnOnePort) {
  const uint16_t port = free_port();
  on_every_rank(2, [&](uint32_t rank) {
    const auto first = connect(place(port, rank, 2));
    const auto second = connect(place(port, rank, 2));  // While the first lives.
    MeetingPlace where = place(port, rank, 2);
    where.job = "night shift";
    const auto third = connect(where);
    for (const auto& ranks : {first, second, third}) {
      ranks->send(1 - rank, {.generation = 1, .sequence = 7, .what = "here"});
      EXPECT_TRUE(receive(*ranks, 1 - rank, 7));
    }
  });
}

TEST(ProcessRanks, GoodbyeIsNotDeath) {
  const uint16_t port = free_port();
  std::shared_ptr<ProcessRanks> stays;
  on_every_rank(2, [&](uint32_t rank) {
    if (rank == 0) {
      stays = connect(place(port, 0, 2));
    } else {
      connect(place(port, 1, 2))->send(0, {.generation = 1, .sequence = 1, .what = "last words"});
    }
  });
  EXPECT_EQ(receive(*stays, 1, 1)->what, "last words");
  EXPECT_EQ(state_of(*stays, 1), PeerState::left);
}

/// The evicted process goes on, as one that is stopped would, and holds its end open.
TEST(ProcessRanks, AnEvictedPeerIsLostAndKnowsIt) {
  const uint16_t port = free_port();
  std::array<std::shared_ptr<ProcessRanks>, 3> all;
  on_every_rank(3, [&](uint32_t rank) { all[rank] = connect(place(port, rank, 3)); });
  all[2]->send(0, {.generation = 1, .sequence = 1, .what = "call"});
  ASSERT_TRUE(receive(*all[0], 2, 1));
  simt::HostAccelerator accelerator([] {});
  const std::array<uint32_t, 1> gone{2};
  all[0]->evict(all[0]->view(), gone, all[0]->epoch(), accelerator, accelerator.now() + kSoon,
                [] {});
  EXPECT_EQ(state_of(*all[0], 2), PeerState::lost);
  EXPECT_EQ(state_of(*all[1], 2), PeerState::lost);
  EXPECT_EQ(state_of(*all[2], 2), PeerState::lost) << "it does not know that it is out";
  EXPECT_EQ(all[0]->mailbox().state(1), PeerState::present);
}

/// A rank that has seen an epoch makes worlds of its members, or of later ones.
TEST(ProcessRanks, HaveTheMembersOfEveryEpochThatCallersLearnOf) {
  const auto job = connect_job({.rank = 0, .size = 1}, {.timeout = kSoon});
  Job::State& state = *job->state();
  control::Participant& from_control_plane = state;
  control::Verdict verdict{.next = state.ranks().view(), .groups = {}, .lost = {}, .left = {}};
  std::atomic<bool> over = false;
  uint64_t behind = 0;
  std::thread caller([&] {
    while (!over) {
      const uint64_t learned = job->epoch();
      if (state.ranks().epoch() < learned) ++behind;
    }
  });
  for (int change = 0; change < 20'000; ++change) {
    ++verdict.next.epoch;
    from_control_plane.install(verdict, {});
  }
  over = true;
  caller.join();
  EXPECT_EQ(behind, 0u);
}

TEST(ProcessRanks, AwaitTheirOwnAdmission) {
  const auto job = connect_job({.rank = 0, .size = 1}, {.timeout = kSoon});
  ProcessRanks& ranks = job->state()->ranks();
  simt::HostAccelerator accelerator([] {});
  const auto members = [&] {
    return ranks.await_members(accelerator, accelerator.now() + milliseconds(50), [] {});
  };
  EXPECT_TRUE(members().at(0));
  ranks.install(
      {.next = {.epoch = 2, .slots = 1, .members = {}}, .groups = {}, .lost = {}, .left = {}});
  EXPECT_THROW(members(), PeerTimeout);
}

TEST(ProcessRanks, ExcuseNobodyForALaterWaitOrAProcessThatIsGone) {
  const auto job = connect_job({.rank = 0, .size = 1}, {.timeout = kSoon});
  ProcessRanks& ranks = job->state()->ranks();
  simt::HostAccelerator accelerator([] {});
  const control::Member late{1, 7};
  control::View view = ranks.view();
  view.epoch = 2;
  view.slots = 2;
  view.members.push_back(late);
  ranks.came(late);
  ranks.install({.next = view, .groups = {}, .lost = {}, .left = {}, .excused = {1}});
  const auto evict = [&](control::Epoch since) {
    const std::array<uint32_t, 1> named{1};
    return ranks.evict(view, named, since, accelerator, accelerator.now() + milliseconds(20),
                       [] {});
  };
  EXPECT_EQ(evict(1), std::vector<uint32_t>{1});
  EXPECT_THROW(evict(2), PeerTimeout) << "it was excused before the wait for it began";
  ranks.gone(1, false);
  EXPECT_THROW(evict(1), PeerTimeout) << "nobody else asks to evict one that has died";
}

TEST(ProcessRanks, ChecksItsArguments) {
  const auto refused = [](const MeetingPlace& where) {
    try {
      connect(where);
    } catch (const InvalidArgument& error) {
      return error.argument;
    }
    return std::string("nothing");
  };
  EXPECT_EQ(refused({.rank = 0, .size = 0}), "size");
  EXPECT_EQ(refused({.rank = 2, .size = 2}), "rank");
  EXPECT_EQ(refused({.rank = 0, .size = 2}), "port");
  EXPECT_EQ(refused({.port = 1, .rank = 0, .size = 2, .job = ""}), "job");
}

}  // namespace
}  // namespace tokenyard
