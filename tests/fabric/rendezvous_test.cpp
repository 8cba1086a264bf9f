#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <asio.hpp>
#include <atomic>
#include <latch>
#include <list>
#include <string>
#include <thread>

#include "fabric/free_port.hpp"
#include "fabric/manual_accelerator.hpp"
#include "fabric/ranks.hpp"
#include "fabric/tcp/mesh.hpp"
#include "fabric/tcp/rendezvous.hpp"

namespace tokenyard::tcp {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

/// Ample time for what should happen at once, on any machine.
constexpr milliseconds kSoon{30'000};

/// One rank of a rendezvous.
struct Attendee {
  std::shared_ptr<TcpMesh> attend(const Rendezvous& where, milliseconds time = kSoon) {
    mesh = TcpMesh::connect(where, accelerator, accelerator.now() + time);
    return mesh;
  }
  ManualAccelerator accelerator;
  std::shared_ptr<TcpMesh> mesh;
};

Rendezvous place(uint16_t port, uint32_t rank, uint32_t size) {
  return {.host = "127.0.0.1", .port = port, .rank = rank, .size = size};
}

/// Waits for a message of the peer; returns nothing if it does not come in time.
std::optional<Message> receive(Attendee& me, uint32_t from, uint64_t sequence) {
  std::optional<Message> message;
  me.accelerator.wait_until(me.accelerator.now() + kSoon, [&] {
    message = me.mesh->mailbox().take(from, 1, sequence);
    return message.has_value();
  });
  return message;
}

PeerState state_of(Attendee& me, uint32_t peer) {
  me.accelerator.wait_until(me.accelerator.now() + kSoon,
                            [&] { return me.mesh->mailbox().state(peer) != PeerState::present; });
  return me.mesh->mailbox().state(peer);
}

/// A connection from a program that is no rank.
class Intruder {
 public:
  explicit Intruder(uint16_t port) : socket_(io_) {
    const Endpoint door(asio::ip::address_v4::loopback(), port);
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
  void say(const Frame& frame) {
    asio::error_code ignored;
    asio::write(socket_, asio::buffer(encode(frame)), ignored);
  }

 private:
  asio::io_context io_;
  Socket socket_;
};

TEST(TcpRendezvous, JoinsEveryPairOfRanks) {
  constexpr uint32_t kRanks = 5;
  const uint16_t port = free_port();
  on_every_rank(kRanks, [&](uint32_t rank) {
    Attendee me;
    me.attend(place(port, rank, kRanks));
    const std::vector<std::byte> large(3 << 20, static_cast<std::byte>(rank));
    for (uint32_t peer = 0; peer < kRanks; ++peer) {
      if (peer == rank) continue;
      me.mesh->send(peer, {.generation = 1, .sequence = 1, .what = "small"});
      me.mesh->send(peer, {.generation = 1, .sequence = 2, .what = "large", .bytes = large});
    }
    for (uint32_t peer = 0; peer < kRanks; ++peer) {
      if (peer == rank) continue;
      EXPECT_EQ(receive(me, peer, 1)->what, "small");
      EXPECT_EQ(receive(me, peer, 2)->bytes,
                std::vector<std::byte>(3 << 20, static_cast<std::byte>(peer)));
    }
  });
}

TEST(TcpRendezvous, ARankAloneMeetsNobody) {
  Attendee me;
  EXPECT_EQ(me.attend({.rank = 0, .size = 1})->slots(), 1u);
}

TEST(TcpRendezvous, NamesTheRankThatNeverComes) {
  const uint16_t port = free_port();
  const auto failures = run_ranks(3, [&](uint32_t rank) {
    if (rank == 1) return;
    Attendee().attend(place(port, rank, 3), milliseconds(2000));
  });
  for (const uint32_t rank : {0u, 2u}) {
    EXPECT_TRUE(holds<PeerTimeout>(failures[rank], [](const PeerTimeout& error) {
      EXPECT_EQ(error.facts.rank, 1u);
      EXPECT_THAT(error.facts.phase, HasSubstr("rendezvous: "));
    }));
  }
}

TEST(TcpRendezvous, NamesRankZeroWhereNobodyListens) {
  const auto failures = run_ranks(
      1, [&](uint32_t) { Attendee().attend(place(free_port(), 1, 2), milliseconds(1000)); });
  EXPECT_TRUE(holds<PeerTimeout>(failures[0], [](const PeerTimeout& error) {
    EXPECT_EQ(error.facts.rank, 0u);
    EXPECT_THAT(error.facts.phase, HasSubstr("rendezvous: connect to rank 0 at 127.0.0.1:"));
    EXPECT_THAT(error.facts.phase, HasSubstr("refused"));
  }));
}

TEST(TcpRendezvous, RefusesADuplicateAndGoesOn) {
  const uint16_t port = free_port();
  std::array<Attendee, 3> all;
  std::atomic<uint32_t> refused = 0;
  on_every_rank(3, [&](uint32_t who) {
    Attendee& me = all[who];
    if (who == 0) {
      me.attend(place(port, 0, 3));
      return;
    }
    // Two connect as rank 1. The second is refused, and connects again as rank 2.
    try {
      me.attend(place(port, 1, 3));
    } catch (const InvalidArgument& error) {
      EXPECT_EQ(error.argument, "rank");
      EXPECT_THAT(error.seen, HasSubstr("1, which 127.0.0.1:"));
      ++refused;
      me.attend(place(port, 2, 3));
    }
  });
  EXPECT_EQ(refused, 1u);
}

TEST(TcpRendezvous, NamesBothSizesAndBothJobs) {
  const uint16_t port = free_port();
  std::string host_error;
  Attendee host;
  std::jthread hosting([&] {
    try {
      host.attend(place(port, 0, 2));
    } catch (const PeerTimeout& error) {
      host_error = error.facts.phase;
    }
  });
  const auto failures = run_ranks(2, [&](uint32_t who) {
    Rendezvous where = place(port, 1, 2);
    if (who == 0) where.size = 4;
    if (who == 1) where.job = "day shift";
    Attendee().attend(where);
  });
  host.accelerator.skip(kSoon);  // Rank 0 has seen both by now, and no other rank will come.
  hosting.join();
  EXPECT_TRUE(holds<InvalidArgument>(failures[0], [](const InvalidArgument& error) {
    EXPECT_EQ(error.argument, "size");
    EXPECT_EQ(error.expected, "2 as on rank 0");
    EXPECT_EQ(error.seen, "4");
  }));
  EXPECT_TRUE(holds<InvalidArgument>(failures[1], [](const InvalidArgument& error) {
    EXPECT_EQ(error.expected, "'tokenyard'");
    EXPECT_EQ(error.seen, "'day shift'");
  }));
  EXPECT_THAT(host_error, HasSubstr("size must be 2 as on rank 0, not 4"));
  EXPECT_THAT(host_error, HasSubstr("job must be 'tokenyard', not 'day shift'"));
}

TEST(TcpRendezvous, StrangersAreNamedAndStallNobody) {
  const uint16_t port = free_port();
  Attendee host;
  std::jthread hosting([&] { host.attend(place(port, 0, 2)); });
  // Each has five seconds to identify itself: served one after the other, they would take longer
  // than any rank here waits.
  std::list<Intruder> silent;
  while (silent.size() < 10) silent.emplace_back(port);
  Intruder browser(port);
  browser.say("GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: somebody with much to say\r\n\r\n");
  Intruder newer(port);
  Frame future = hello({.where = place(port, 1, 2), .listener_port = 1});
  future.header.version = 2;
  newer.say(future);
  Intruder greedy(port);
  Frame huge = hello({.where = place(port, 1, 2), .listener_port = 1});
  huge.payload.resize(5000);
  greedy.say(huge);
  { const Intruder gone(port); }

  Attendee guest;
  guest.attend(place(port, 1, 2));
  hosting.join();
  for (const std::string expected :
       {"does not speak Tokenyard's protocol", "speaks version 2 of the protocol, not 1",
        "over the limit of 4096 + 4096", "did not identify itself"}) {
    EXPECT_TRUE(host.accelerator.wait_until(host.accelerator.now() + kSoon, [&] {
      const auto refused = host.mesh->refusals();
      return std::any_of(refused.begin(), refused.end(), [&](const std::string& refusal) {
        return refusal.find(expected) != std::string::npos;
      });
    })) << expected;
  }
}

TEST(TcpRendezvous, ARankMayComeBackBeforeEverybodyIsThere) {
  const uint16_t port = free_port();
  std::latch gave_up(1);
  on_every_rank(3, [&](uint32_t rank) {
    if (rank == 1) {
      EXPECT_THROW(Attendee().attend(place(port, 1, 3), milliseconds(300)), PeerTimeout);
      gave_up.count_down();
    }
    if (rank == 2) gave_up.wait();
    Attendee me;
    me.attend(place(port, rank, 3));
  });
}

TEST(TcpRendezvous, OneWorldAfterTheOtherOnOnePort) {
  const uint16_t port = free_port();
  on_every_rank(2, [&](uint32_t rank) {
    Attendee first;
    first.attend(place(port, rank, 2));
    Attendee second;  // While the first mesh lives.
    second.attend(place(port, rank, 2));
    second.mesh->send(1 - rank, {.generation = 1, .sequence = 7, .what = "here"});
    EXPECT_TRUE(receive(second, 1 - rank, 7));
  });
}

TEST(TcpRendezvous, AnotherJobAfterTheFirstOnOnePort) {
  const uint16_t port = free_port();
  on_every_rank(2, [&](uint32_t rank) {
    Attendee first;
    first.attend(place(port, rank, 2));
    Attendee second;
    Rendezvous where = place(port, rank, 2);
    where.job = "night shift";
    second.attend(where);
    second.mesh->send(1 - rank, {.generation = 1, .sequence = 7, .what = "here"});
    EXPECT_TRUE(receive(second, 1 - rank, 7));
  });
}

TEST(TcpMesh, GoodbyeIsNotDeath) {
  const uint16_t port = free_port();
  Attendee stays;
  on_every_rank(2, [&](uint32_t rank) {
    if (rank == 0) {
      stays.attend(place(port, 0, 2));
    } else {
      Attendee leaves;
      leaves.attend(place(port, 1, 2));
      leaves.mesh->send(0, {.generation = 1, .sequence = 1, .what = "last words"});
    }
  });
  EXPECT_EQ(receive(stays, 1, 1)->what, "last words");
  EXPECT_EQ(state_of(stays, 1), PeerState::left);
}

/// The peer's process goes on, as one that is stopped would, and holds its end open.
TEST(TcpMesh, AnExpelledPeerIsLostBehindWhatItHasSent) {
  const uint16_t port = free_port();
  Attendee stays, ghost;
  on_every_rank(2, [&](uint32_t rank) {
    Attendee& me = rank == 0 ? stays : ghost;
    me.attend(place(port, rank, 2));
  });
  const auto send = [&](uint64_t sequence) {
    ghost.mesh->send(0, {.generation = 1, .sequence = sequence, .what = "call"});
  };
  send(1);
  ASSERT_TRUE(receive(stays, 1, 1));
  send(2);
  send(3);
  ASSERT_TRUE(receive(stays, 1, 2));
  stays.mesh->expel(1);
  EXPECT_EQ(state_of(stays, 1), PeerState::lost);
  send(4);
  std::this_thread::sleep_for(milliseconds(20));
  EXPECT_FALSE(stays.mesh->mailbox().take(1, 1, 4)) << "it came after the agreement";
}

TEST(TcpMesh, ChecksItsArguments) {
  const auto refused = [](const Rendezvous& where) {
    try {
      Attendee().attend(where);
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
}  // namespace tokenyard::tcp
