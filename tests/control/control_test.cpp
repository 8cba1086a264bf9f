/// Control planes find one another, notice failures and reject strangers.
#include "control/control.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <future>
#include <random>
#include <thread>

#include "control/control_planes.hpp"
#include "control/memory_store.hpp"
#include "fabric/free_port.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard::control::testing {
namespace {

TEST_F(ControlPlane, FoundersBeginWithOneAnother) {
  const auto ranks = found(4);
  for (const auto& rank : ranks) {
    const Verdict first = rank->recorder.last();
    EXPECT_EQ(first.next.epoch, 1u);
    EXPECT_EQ(first.next, ranks[0]->recorder.last().next);
    ASSERT_EQ(first.next.members.size(), 4u);
    for (Slot slot = 0; slot < 4; ++slot) {
      EXPECT_EQ(first.next.members[slot], ranks[slot]->control->self());
      EXPECT_EQ(rank->recorder.contacts().at(slot), contact_of(slot));
    }
  }
}

TEST_F(ControlPlane, OneAloneIsAJob) {
  const auto ranks = found(1);
  EXPECT_EQ(ranks[0]->recorder.last().next.members.size(), 1u);
}

TEST_F(ControlPlane, FoundersMeetInAServerThatTheFirstOfThemRuns) {
  const uint16_t port = free_port();
  std::vector<std::unique_ptr<Rank>> ranks(3);
  on_every_rank(3, [&](uint32_t slot) {
    ControlOptions served = options(slot, 3);
    served.store = fmt::format("tcp://127.0.0.1:{}", port);
    ranks[slot] = std::make_unique<Rank>(served);
    ranks[slot]->found();
  });
  EXPECT_EQ(ranks[2]->recorder.last().next.members.size(), 3u);
}

TEST_F(ControlPlane, JobThatWasStartedAgainFindsItsNewSelf) {
  for (int life = 0; life < 3; ++life) {
    const auto ranks = found(2);
    EXPECT_EQ(ranks[1]->recorder.last().next, ranks[0]->recorder.last().next);
  }
}

TEST_F(ControlPlane, WhoDoesNotComeIsNamed) {
  ControlOptions impatient = options(0, 3);
  impatient.timeout = 300ms;
  Rank alone(impatient);
  try {
    alone.found();
    FAIL() << "it began alone";
  } catch (const PeerTimeout& error) {
    EXPECT_EQ(error.facts.rank, 1u);
    EXPECT_EQ(error.facts.phase,
              "rendezvous: ranks 1, 2 have not come to the store " + impatient.store);
    EXPECT_EQ(error.facts.seen, 1u);
  }
}

/// As if the others had been given another address.
TEST_F(ControlPlane, WhoServesTheStoreItselfIsToldSo) {
  ControlOptions impatient = options(1, 2);
  impatient.timeout = 300ms;
  impatient.store = fmt::format("tcp://127.0.0.1:{}", free_port());
  Rank alone(impatient);
  try {
    alone.found();
    FAIL() << "it began alone";
  } catch (const PeerTimeout& error) {
    EXPECT_EQ(error.facts.phase, "rendezvous: rank 0 has not come to the store " + impatient.store +
                                     ", which this rank serves, since nobody did");
  }
}

TEST_F(ControlPlane, FounderThatDiedEarlyIsReplacedByOneThatIsStartedInItsPlace) {
  ControlOptions impatient = options(0, 2);
  impatient.timeout = 200ms;
  EXPECT_THROW(Rank(impatient).found(), PeerTimeout);  // its endpoint stays in the store
  const auto ranks = found(2);
  EXPECT_EQ(ranks[1]->recorder.last().next.members[0], ranks[0]->control->self());
}

TEST_F(ControlPlane, RanksThatWereToldDifferentThingsSaySo) {
  std::vector<std::unique_ptr<Rank>> ranks;
  ranks.push_back(std::make_unique<Rank>(options(0, 2)));
  ranks.push_back(std::make_unique<Rank>(options(1, 3)));
  const auto failures = run_ranks(2, [&](uint32_t rank) { ranks[rank]->found(); });
  bool published = false;
  for (const auto& failure : failures) {
    holds<InvalidArgument>(failure, [&](const InvalidArgument& error) {
      published = true;
      EXPECT_EQ(error.argument, "size");
    });
  }
  EXPECT_TRUE(published);
}

/// A store in which one rank does not find the others for a while; they find it, and link with it.
class LateStore final : public Store {
 public:
  explicit LateStore(std::shared_ptr<Store> store) : store_(std::move(store)) {}
  std::optional<Value> get(const std::string& key) override {
    const bool is_other = key.ends_with("slot/1");
    if (is_other && steady_clock::now() - start_ < 1s) return std::nullopt;
    return store_->get(key);
  }
  void set(const std::string& key, const Value& value) override { store_->set(key, value); }
  Value compare_and_set(const std::string& key, const std::optional<Value>& expected,
                        const Value& desired) override {
    return store_->compare_and_set(key, expected, desired);
  }

 private:
  const std::shared_ptr<Store> store_;
  const steady_clock::time_point start_ = steady_clock::now();
};

TEST_F(ControlPlane, RankThatIsLinkedAlreadyMustHaveTheSameSize) {
  const auto store = std::make_shared<MemoryStore>();
  ControlOptions first = options(0, 2), second = options(1, 3);
  first.own_store = std::make_shared<LateStore>(store);
  second.own_store = store;
  Rank one(first), other(second);
  const auto failures = run_ranks(2, [&](uint32_t rank) { (rank == 0 ? one : other).found(); });
  for (const uint32_t rank : {0u, 1u}) {
    EXPECT_TRUE(holds<InvalidArgument>(failures[rank], [&](const InvalidArgument& error) {
      EXPECT_EQ(error.argument, "size");
      EXPECT_EQ(error.rank, 1 - rank);
    })) << rank;
  }
}

/// Holds a port, and hangs up on everybody.
class OtherProgram {
 public:
  OtherProgram() : acceptor_(io_, {asio::ip::address_v4::any(), 0}) {
    accept();
    thread_ = std::thread([this] { io_.run(); });
  }
  ~OtherProgram() {
    io_.stop();
    thread_.join();
  }
  uint16_t port() const { return acceptor_.local_endpoint().port(); }

 private:
  void accept() {
    acceptor_.async_accept([this](const asio::error_code&, asio::ip::tcp::socket) { accept(); });
  }

  asio::io_context io_;
  asio::ip::tcp::acceptor acceptor_;
  std::thread thread_;
};

TEST_F(ControlPlane, PortThatAnotherProgramHoldsIsNamed) {
  const OtherProgram other;
  // Meanwhile a founder that serves no store waits for one at a port that nobody holds.
  ControlOptions waits = options(1, 2);
  waits.store = fmt::format("tcp://127.0.0.1:{}", free_port());
  waits.sole_host = true;
  waits.host_store = false;
  waits.timeout = 100s;
  Rank guest(waits);
  auto nobody = std::async(std::launch::async, [&] { guest.found(); });
  ControlOptions hosts = options(0, 2);
  hosts.store = fmt::format("tcp://127.0.0.1:{}", other.port());
  hosts.sole_host = true;
  hosts.timeout = 100s;
  try {
    Rank(hosts).found();
    FAIL() << "it began";
  } catch (const OsError& error) {
    EXPECT_EQ(error.code, EADDRINUSE);
    EXPECT_THAT(error.what(), ::testing::HasSubstr(fmt::format("port {}", other.port())));
    EXPECT_THAT(error.what(), ::testing::HasSubstr("ss -ltnp"));
  }
  try {
    nobody.get();
    FAIL() << "it began";
  } catch (const OsError& error) {
    EXPECT_EQ(error.code, ECONNREFUSED);
  }
}

TEST_F(ControlPlane, TwoOfOneRankDoNotBothBegin) {
  ControlOptions impatient = options(1, 2);
  impatient.timeout = 1s;  // the later one waits for rank 0
  Rank first(impatient), second(impatient);
  const auto failures = run_ranks(2, [&](uint32_t rank) { (rank == 0 ? first : second).found(); });
  const auto published = [](const std::exception_ptr& failure) {
    return holds<InvalidArgument>(
        failure, [](const InvalidArgument& error) { EXPECT_EQ(error.argument, "rank"); });
  };
  EXPECT_TRUE(published(failures[0]) || published(failures[1]));
}

TEST_F(ControlPlane, InterruptEndsTheWait) {
  ControlOptions interrupted = options(0, 2);
  interrupted.interrupt = [] { throw Cancelled("test"); };
  EXPECT_THROW(Rank(interrupted).found(), Cancelled);
}

TEST_F(ControlPlane, StallIsReportedByTheEngineAndEndsTheEpoch) {
  const auto ranks = found(3);
  ranks[0]->control->report_timeout({.slot = 2, .group = 0, .sequence = 1}, 1);
  for (const auto& rank : ranks) {
    EXPECT_TRUE(rank->recorder.wait_for_view([](const View& view) { return view.epoch == 2; }));
    EXPECT_EQ(rank->recorder.last().next.members.size(), 3u);
  }
}

// Its engine is in the middle of a large copy: heartbeats go on, and nobody begins an epoch without
// it, although that takes longer than the limit of silence.
TEST_F(ControlPlane, WhoTakesLongToFreezeIsWaitedFor) {
  auto ranks = found(3);
  std::promise<void> done;
  ranks[2]->recorder.freeze_after(done.get_future().share());
  ranks[0]->control->report_timeout({.slot = 1, .group = 0, .sequence = 1}, 1);
  const auto begun = [](const View& view) { return view.epoch == 2; };
  EXPECT_FALSE(ranks[0]->recorder.wait_for_view(begun, 4s));  // twice the silence
  done.set_value();
  for (const auto& rank : ranks) {
    ASSERT_TRUE(rank->recorder.wait_for_view(begun));
    EXPECT_EQ(rank->recorder.last().next.members.size(), 3u);
  }
}

TEST_F(ControlPlane, StrangersAreTurnedAwayAndDisturbNobody) {
  const auto ranks = found(2);
  const auto where = [&] {
    // Rank 0's endpoint says where it listens.
    Rendezvous rendezvous(Store::open(options(0, 2).store, "tokenyard", "secret"));
    EXPECT_TRUE(rendezvous.find_founded());
    const auto endpoint = rendezvous.look(0);
    return net::TcpEndpoint(asio::ip::make_address(endpoint->address), endpoint->port);
  }();
  asio::io_context io;
  std::vector<net::TcpSocket> silent;
  std::mt19937 random(3);
  constexpr int kStrangers = 200;
  for (int stranger = 0; stranger < kStrangers; ++stranger) {
    net::TcpSocket socket(io);
    socket.connect(where);
    net::Handshake honest(
        net::Handshake::Side::dialler, net::Key("guess", "tokenyard control tokenyard"),
        {.purpose = net::Purpose::member, .job = 1, .self = {1, 5}, .epoch = 1, .sought = 0});
    auto bytes = honest.take_output();
    asio::error_code closed;
    switch (stranger % 4) {
      case 0:
        for (auto& byte : bytes) byte = static_cast<std::byte>(random());
        break;
      case 1:
        bytes.resize(random() % bytes.size());
        break;
      case 2:  // a whole hello, and a wrong proof
        bytes.resize(bytes.size() + sizeof(net::Digest));
        break;
      default:  // sends nothing and stays
        bytes.clear();
    }
    asio::write(socket, asio::buffer(bytes), closed);
    if (stranger % 4 == 3) silent.push_back(std::move(socket));
  }
  const auto until = steady_clock::now() + 20s;
  while (ranks[0]->control->counters().links_refused < kStrangers && steady_clock::now() < until) {
    std::this_thread::sleep_for(5ms);
  }
  EXPECT_EQ(ranks[0]->control->counters().links_refused, static_cast<uint64_t>(kStrangers));
  EXPECT_EQ(ranks[1]->control->view().epoch, 1u);
  // Rank 0 still answers.
  ranks[1]->control->report_timeout({.slot = 0, .group = 0, .sequence = 1}, 1);
  EXPECT_TRUE(ranks[0]->recorder.wait_for_view([](const View& view) { return view.epoch == 2; }));
}

TEST_F(ControlPlane, ForeignJobWithTheSameSecretStaysOutside) {
  const auto ranks = found(1);
  ControlOptions foreign = options(0, 2);
  foreign.job = "another";
  foreign.timeout = 300ms;
  EXPECT_THROW(Rank(foreign).found(), PeerTimeout);
  EXPECT_EQ(ranks[0]->recorder.last().next.members.size(), 1u);
}

}  // namespace
}  // namespace tokenyard::control::testing
