/// Transports over TCP without proxies: one thread moves them all.
#include "fabric/proxy/tcp_transport.hpp"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace tokenyard {
namespace {

using namespace std::chrono_literals;

constexpr MemoryKey kKey = 0x901;

struct Completions final : TransportListener {
  void completed(uint32_t peer, uint32_t, uint32_t) override { ++of[peer]; }
  void settled(uint32_t, uint32_t, uint32_t) override {}
  void refused(uint32_t, uint32_t, NetworkCheck, const NetworkRefusal&) override {}
  std::map<uint32_t, uint32_t> of;
};

/// Ranks that are all connected.
class TcpTransports : public ::testing::Test {
 protected:
  struct Rank {
    Completions completions;
    std::vector<std::byte> memory = std::vector<std::byte>(size_t{64} << 20);
    std::unique_ptr<TcpTransport> transport;
    uint32_t posted = 0;
  };

  void connect(uint32_t count, bool acknowledged, size_t lives_max = 65536) {
    std::vector<std::unique_ptr<TcpConnector>> connectors;
    for (uint32_t rank = 0; rank < count; ++rank) {
      connectors.push_back(std::make_unique<TcpConnector>(
          TcpOptions{.address = "127.0.0.1", .paths = 1},
          TcpConnector::Self{.rank = rank, .epoch = 5, .secret = "for tests only"}));
    }
    for (uint32_t rank = 0; rank < count; ++rank) {
      std::map<uint32_t, TcpEndpoint> peers;
      for (uint32_t peer = 0; peer < count; ++peer)
        if (peer != rank) peers[peer] = connectors[peer]->endpoint();
      connectors[rank]->begin(peers, 1);
    }
    ASSERT_TRUE(eventually([&] {
      bool all = true;
      for (const auto& connector : connectors) all = connector->step(Clock::now()) && all;
      return all;
    }));
    for (uint32_t rank = 0; rank < count; ++rank) {
      std::vector<std::vector<FileDescriptor>> connections(count);
      for (TcpConnector::Made& made : connectors[rank]->take_made())
        connections[made.rank].push_back(std::move(made.socket));
      std::vector<bool> may_be_lost(count, acknowledged);
      may_be_lost[rank] = false;
      Rank& one = ranks_.emplace_back();
      one.transport = std::make_unique<TcpTransport>(
          TcpTransport::Options{.rank = rank,
                                .epoch = 5,
                                .queues = 1,
                                .connections = std::move(connections),
                                .acknowledged = std::move(may_be_lost),
                                .connector = std::move(connectors[rank]),
                                .lives_max = lives_max});
      one.transport->set_listener(one.completions);
      one.transport->register_memory(kKey, one.memory);
    }
  }
  static bool eventually(const std::function<bool()>& condition) {
    const auto until = Clock::now() + 60s;
    while (!condition())
      if (Clock::now() >= until) return false;
    return true;
  }
  /// Moves all transports until the condition holds.
  bool run_until(const std::function<bool()>& condition) {
    return eventually([&] {
      for (Rank& rank : ranks_) rank.transport->poll();
      return condition();
    });
  }
  bool post(uint32_t from, uint32_t to, size_t bytes) {
    Rank& rank = ranks_[from];
    const bool taken = rank.transport->post({.peer = to,
                                             .queue = 0,
                                             .turn = rank.posted,
                                             .kind = NetworkRequest::Kind::put,
                                             .target = {.key = kKey, .offset = 0},
                                             .pieces = {std::span(rank.memory).first(bytes)}});
    if (taken) ++rank.posted;
    return taken;
  }
  TcpTransport& transport(uint32_t rank) { return *ranks_[rank].transport; }

  std::deque<Rank> ranks_;
};

/// The peer's thread does not run, so its system takes what it has room for, and no more.
TEST_F(TcpTransports, APeerThatTakesNothingIsSilentUntilItDoes) {
  connect(2, false);
  ASSERT_TRUE(post(0, 1, 64 << 20));
  ASSERT_TRUE(eventually([&] {
    transport(0).poll();
    return transport(0).silent_for(1) >= 300ms;
  }));
  EXPECT_FALSE(transport(0).broken(1));
  ASSERT_TRUE(run_until([&] { return ranks_[0].completions.of[1] == 1; }));
  EXPECT_TRUE(run_until([&] { return transport(0).silent_for(1) == 0ns; }));
}

TEST_F(TcpTransports, APeerThatAcknowledgesNothingIsSilentUntilItDoes) {
  connect(2, true);
  ASSERT_TRUE(post(0, 1, 1 << 10));
  ASSERT_TRUE(eventually([&] {
    transport(0).poll();
    return transport(0).silent_for(1) >= 300ms;
  }));
  ASSERT_TRUE(run_until([&] { return ranks_[0].completions.of[1] == 1; }));
  EXPECT_EQ(transport(0).silent_for(1), 0ns);
}

/// Time in which this thread does not run says nothing of others.
TEST_F(TcpTransports, OneThatWasStoppedBlamesNobody) {
  connect(2, true);
  transport(0).poll();
  ASSERT_TRUE(post(0, 1, 1 << 10));
  transport(0).poll();
  usleep(1'500'000);
  transport(0).poll();
  EXPECT_LT(transport(0).silent_for(1), 1s);
}

/// The rank with the greater number dials.
TEST_F(TcpTransports, ARankThatWasGivenUpIsToldAndDialsNoMore) {
  connect(2, true);
  transport(0).drop(1, false);
  ASSERT_TRUE(run_until([&] { return !transport(1).may_return(0); }));
  EXPECT_EQ(transport(1).broken(0), "it has given this rank up");
}

TEST_F(TcpTransports, APeerWhosePathsAreLostWithoutEndIsLostAlone) {
  connect(3, true, 0);
  // Rank 1's socket to rank 0 is the peer of one of rank 0's.
  transport(1).close();
  ASSERT_TRUE(run_until([&] { return !transport(0).may_return(1); }));
  EXPECT_EQ(*transport(0).broken(1),
            "its paths are lost without end; now: it has closed its connection");
  ASSERT_TRUE(post(0, 2, 1 << 10));
  EXPECT_TRUE(run_until([&] { return ranks_[0].completions.of[2] == 1; }));
}

}  // namespace
}  // namespace tokenyard
