/// Several interfaces per rank, in network namespaces: paths that die and return under load lose
/// nothing, and apply nothing twice.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <optional>
#include <random>
#include <thread>

#include "base/mapping.hpp"
#include "collectives/network_namespaces.hpp"
#include "fabric/free_port.hpp"
#include "fabric/host/in_process_fabric.hpp"
#include "fabric/meeting_place.hpp"
#include "fabric/network_contract.hpp"
#include "fabric/proxy/proxy_network.hpp"
#include "fabric/worlds.hpp"
#include "net/tcp_socket.hpp"
#include "simt/host_accelerator.hpp"
#include "world/in_process.hpp"

namespace tokenyard::testing {
namespace {

using collectives::NetworkNamespaces;
using namespace std::chrono_literals;

constexpr uint32_t kHosts = 2, kCards = 2;
/// Epochs that all ranks still run once the end is near: none of them may be past the last.
constexpr uint64_t kEpochsToTheEnd = 100;

/// Signals of a queue, one behind the other, so that some are under way whenever a path is lost. A
/// word of the peer's counts them.
RequestParams stream_of_signals(NetworkFixture& fixture, uint32_t count) {
  RequestParams params = bad_case(BadRequest::wrong_tag, fixture, fixture.far_peer()).params;
  params.kind = NetworkRequest::Kind::signal;
  params.target = fixture.targets[params.peer] + offsetof(NetworkWindow, reused_arrived);
  params.count = count;
  return params;
}

void require_signals(NetworkFixture& fixture, uint64_t expected) {
  fixture.drain();
  fixture.world.barrier("all have come");
  const uint64_t seen = fixture.read(&fixture.window()->reused_arrived[0]);
  promise(seen == expected, fmt::format("{} signals of {} came", seen, expected));
}

/// Memory that parent and children share.
struct Page {
  std::atomic<uint64_t> epochs[kHosts], up[kHosts], losses[kHosts];
  std::atomic<uint64_t> last;
};

class LostPaths : public ::testing::Test {
 protected:
  void SetUp() override {
    try {
      network_.emplace(kHosts, kCards);
    } catch (const std::runtime_error& error) {
      GTEST_SKIP() << "no network namespaces here: " << error.what();
    }
    page().last = ~uint64_t{0};
  }

  std::unique_ptr<World> join(uint32_t rank, uint32_t connections) {
    network_->enter(rank);
    return connect_world({.host = NetworkNamespaces::address(0),
                          .port = port_,
                          .rank = rank,
                          .size = kHosts,
                          .local_rank = rank,
                          .secret = "a secret for tests only"},
                         "host",
                         {.timeout = 60s,
                          .arena_bytes = 1 << 20,
                          .network = {.interfaces = NetworkNamespaces::card_name(0) + "," +
                                                    NetworkNamespaces::card_name(1),
                                      .connections = connections}});
  }
  void publish(const World& world, uint64_t epoch) {
    uint64_t up = 0, losses = 0;
    for (const NetworkPath& path : world.network_paths()) {
      up += path.up ? 1 : 0;
      losses += path.times_lost;
    }
    page().up[world.rank()] = up;
    page().losses[world.rank()] = losses;
    page().epochs[world.rank()] = epoch;
  }
  /// Exchanges messages until the parent says which epoch is the last, and counts the signals.
  void exchange_to_the_end(World& world) {
    NetworkFixture fixture(world, {});
    NetworkParams params = fixture.params();
    RequestParams stream = stream_of_signals(fixture, 200);
    for (params.epoch = 1; params.epoch <= page().last; ++params.epoch) {
      fixture.run(network_exchange_kernel, {}, params);
      stream.queue = params.epoch % params.queues.per_peer;
      fixture.run(network_request_kernel, {}, stream);
      publish(world, params.epoch);
    }
    fixture.require_right();
    require_signals(fixture, uint64_t{200} * (params.epoch - 1));
    const uint32_t from = 1 - world.rank(), queues = params.queues.per_peer;
    uint64_t signals = 0;
    for (uint32_t queue = 0; queue < queues; ++queue)
      signals += fixture.read(&fixture.window()->arrived[from][queue]);
    promise(signals == params.epoch - 1,
            fmt::format("{} signals came in {} epochs", signals, params.epoch - 1));
  }

  Page& page() { return *reinterpret_cast<Page*>(shared_.base()); }
  [[nodiscard]] bool await(const std::function<bool()>& condition) {
    const auto until = std::chrono::steady_clock::now() + 100s;
    while (!condition()) {
      if (std::chrono::steady_clock::now() >= until) return false;
      std::this_thread::sleep_for(5ms);
    }
    return true;
  }
  bool each(const std::function<bool(uint32_t)>& holds) {
    bool all = true;
    for (uint32_t rank = 0; rank < kHosts; ++rank) all = all && holds(rank);
    return all;
  }
  [[nodiscard]] bool await_epochs(uint64_t more) {
    const uint64_t first = page().epochs[0] + more, second = page().epochs[1] + more;
    return await([&] { return page().epochs[0] >= first && page().epochs[1] >= second; });
  }
  [[nodiscard]] bool await_up(uint64_t paths) {
    return await([&] { return each([&](uint32_t rank) { return page().up[rank] == paths; }); });
  }
  void end_soon() {
    page().last = std::max<uint64_t>(page().epochs[0], page().epochs[1]) + kEpochsToTheEnd;
  }
  void expect_zero(RankProcesses& ranks) {
    for (uint32_t rank = 0; rank < kHosts; ++rank)
      EXPECT_EQ(ranks.wait(rank), 0) << "rank " << rank;
  }

  std::optional<NetworkNamespaces> network_;

 private:
  Mapping shared_ = Mapping::with_children(sizeof(Page));
  const uint16_t port_ = free_port();
};

TEST_F(LostPaths, APathThatDiesUnderLoadIsReplacedAndUsedAgain) {
  RankProcesses ranks(kHosts, [&](uint32_t rank) {
    const auto world = join(rank, 2);
    exchange_to_the_end(*world);
  });
  ASSERT_TRUE(await_epochs(20));
  ASSERT_TRUE(await_up(2));
  // A cable is pulled at one end, then a card is taken down at the other.
  for (const bool cable : {true, false}) {
    cable ? network_->cut(1, 1) : network_->take_down(0, 1);
    ASSERT_TRUE(await_up(1));
    ASSERT_TRUE(await_epochs(50));
    cable ? network_->recover(1, 1) : network_->take_up(0, 1);
    ASSERT_TRUE(await_up(2));
    ASSERT_TRUE(await_epochs(50));
  }
  EXPECT_TRUE(each([&](uint32_t rank) { return page().losses[rank] >= 2; }));
  end_soon();
  expect_zero(ranks);
}

/// Puts of several parts over four paths, two of which die.
TEST_F(LostPaths, LongPutsGoOnOverTheOthers) {
  RankProcesses ranks(kHosts, [&](uint32_t rank) {
    const auto world = join(rank, 4);
    for (uint64_t epoch = 1; epoch <= page().last; ++epoch) {
      carries(*world, 3 << 20);
      publish(*world, epoch);
      // Both must see the same last one.
      world->barrier("next");
    }
    publish(*world, 0);
  });
  ASSERT_TRUE(await_epochs(3));
  network_->cut(1, 1);
  ASSERT_TRUE(await_up(2));
  ASSERT_TRUE(await_epochs(3));
  network_->recover(1, 1);
  ASSERT_TRUE(await_up(4));
  ASSERT_TRUE(await_epochs(3));
  page().last = std::max<uint64_t>(page().epochs[0], page().epochs[1]) + 5;
  expect_zero(ranks);
}

/// The even paths take the first card, the odd ones the second.
TEST_F(LostPaths, LongPutsTakeTheFasterCard) {
  try {
    for (uint32_t host = 0; host < kHosts; ++host) network_->slow_down(host, 1, 50);
  } catch (const std::runtime_error& error) {
    GTEST_SKIP() << "no slow cards here: " << error.what();
  }
  RankProcesses ranks(kHosts, [&](uint32_t rank) {
    const auto world = join(rank, 4);
    for (uint32_t round = 0; round < 10; ++round) carries(*world, 6 << 20);
    uint64_t bytes[kCards] = {};
    for (const NetworkPath& path : world->network_paths())
      bytes[path.number % kCards] += path.bytes_sent;
    promise(bytes[1] != 0 && bytes[0] > 2 * bytes[1],
            fmt::format("{} bytes by the fast card, {} by the slow one", bytes[0], bytes[1]));
    world->barrier("compared");
  });
  expect_zero(ranks);
}

/// Shuts down connections of this process at random, of all paths or of one address family.
class Breaking {
 public:
  explicit Breaking(uint32_t seed)
      : thread_([this, seed](const std::stop_token& stops) {
          std::mt19937 random(seed);
          while (!stops.stop_requested()) {
            std::this_thread::sleep_for(std::chrono::milliseconds(5 + random() % 60));
            std::vector<int> sockets = connections();
            if (sockets.empty()) continue;
            const size_t count = random() % 4 == 0 ? sockets.size() : 1;
            for (size_t each = 0; each < count; ++each)
              if (shutdown(sockets[random() % sockets.size()], SHUT_RDWR) == 0) ++broken;
          }
        }) {}

  std::atomic<uint32_t> broken = 0;

 private:
  static std::vector<int> connections() {
    std::vector<int> found;
    for (int descriptor = 3; descriptor < 1024; ++descriptor) {
      sockaddr_storage peer{};
      socklen_t bytes = sizeof peer;
      if (getpeername(descriptor, reinterpret_cast<sockaddr*>(&peer), &bytes) != 0) continue;
      if (peer.ss_family == AF_INET || peer.ss_family == AF_INET6) found.push_back(descriptor);
    }
    return found;
  }

  std::jthread thread_;
};

/// Two ranks in this process, each with an interface for IPv4 and one for IPv6.
class PathsThatBreak : public ::testing::TestWithParam<uint32_t> {
 protected:
  static void run(const Program& program) {
    const WorldOptions options{.timeout = 60s, .arena_bytes = 1 << 20, .hosts = 2};
    std::vector<std::shared_ptr<Accelerator>> accelerators;
    for (uint32_t rank = 0; rank < 2; ++rank)
      accelerators.push_back(std::make_shared<simt::HostAccelerator>([] {}));
    try {
      net::listen_at("::1");
    } catch (const Error& error) {
      GTEST_SKIP() << "no IPv6 here: " << error.what();
    }
    std::vector<std::unique_ptr<World>> worlds =
        join_all(accelerators, std::make_shared<InProcessFabric>(2), options, {},
                 proxy_networks({.tcp = {.interfaces = {"127.0.0.1", "::1"}, .paths = 4}}));
    on_every_rank(2, [&](uint32_t rank) {
      const std::unique_ptr<World> mine = std::move(worlds[rank]);
      program(*mine);
      // Every path comes back.
      Accelerator& gpu = accelerator_of(*mine);
      const auto all_up = [&] {
        return std::ranges::all_of(mine->network_paths(), &NetworkPath::up);
      };
      promise(gpu.wait_until(gpu.now() + 60s, all_up), "a path has not been made anew");
      mine->barrier("whole");
    });
  }
};

INSTANTIATE_TEST_SUITE_P(Seeds, PathsThatBreak, ::testing::Values(1, 2, 3));

TEST_P(PathsThatBreak, LoseNothingAndApplyNothingTwice) {
  std::optional<Breaking> breaking;
  std::atomic<uint32_t> rounds = 0;
  run([&](World& world) {
    if (world.rank() == 0) breaking.emplace(GetParam());
    NetworkFixture fixture(world, {});
    NetworkParams params = fixture.params();
    for (params.epoch = 1; params.epoch <= 600; ++params.epoch)
      fixture.run(network_exchange_kernel, {}, params);
    fixture.require_right();
    world.barrier("exchanged");
    for (uint32_t queue = 0; queue < params.queues.per_peer; ++queue) {
      const uint64_t signals = fixture.read(&fixture.window()->arrived[1 - world.rank()][queue]);
      promise(signals == 600 / params.queues.per_peer, fmt::format("{} signals", signals));
    }
    RequestParams stream = stream_of_signals(fixture, 10000);
    for (stream.queue = 0; stream.queue < params.queues.per_peer; ++stream.queue)
      fixture.run(network_request_kernel, {}, stream);
    require_signals(fixture, uint64_t{10000} * params.queues.per_peer);
    rings_keep_credit(world, kRingSlots, 100);
    for (const uint32_t bytes : {33u << 10, 5u << 20}) carries(world, bytes);
    world.barrier("enough");
    if (world.rank() == 0) {
      rounds = breaking->broken.load();
      breaking.reset();
    }
    world.barrier("breaks no more");
  });
  EXPECT_TRUE(IsSkipped() || rounds > 0);
}

}  // namespace
}  // namespace tokenyard::testing
