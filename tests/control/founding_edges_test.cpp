/// Founders whose store, peers or own words fail them, and what their lines on stderr say.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <future>
#include <thread>

#include "base/environment.hpp"
#include "base/fnv1a.hpp"
#include "control/control_planes.hpp"
#include "control/memory_store.hpp"
#include "control/rendezvous.hpp"
#include "control/store_server.hpp"
#include "fabric/free_port.hpp"
#include "net/connection.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard::control::testing {
namespace {

using ::testing::HasSubstr;

/// Founds, and returns the error of one kind that this ends with.
template <class Error>
std::optional<Error> failure_of(const ControlOptions& options) {
  Rank rank(options);
  try {
    rank.found();
  } catch (const Error& error) {
    return error;
  }
  return std::nullopt;
}

/// Nobody listens there.
std::string nowhere() {
  return fmt::format("tcp://127.0.0.1:{}", free_port());
}

ControlEndpoint endpoint_at(Slot slot, uint16_t port) {
  return {.member = {slot, 5}, .size = 3, .address = "127.0.0.1", .port = port, .contact = {}};
}

TEST_F(ControlPlane, AStoreThatNeverAnswersIsTheError) {
  ControlOptions own = options(0, 2);
  own.store = nowhere();
  own.host_store = false;
  own.timeout = 50ms;
  const auto error = failure_of<OsError>(own);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code, ECONNREFUSED);
}

// Not that it is gone by now.
TEST_F(ControlPlane, ThatAStoreRefusedThisProcessIsTheError) {
  auto server = std::make_unique<StoreServer>("127.0.0.1", 0, "another secret");
  ControlOptions own = options(0, 2);
  own.store = fmt::format("tcp://127.0.0.1:{}", server->port());
  own.host_store = false;
  own.timeout = 1s;
  own.interrupt = [&] {
    if (server && server->refused() > 0) server.reset();
  };
  const auto error = failure_of<OsError>(own);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code, EPROTO);
}

/// A store that ends once a founder has found one of the others missing.
class EndingStore final : public Store {
 public:
  std::optional<Value> get(const std::string& key) override {
    if (ended_) throw OsError("the store", ECONNREFUSED, "it has ended");
    auto value = store_.get(key);
    ended_ = !value && key.ends_with("slot/2");
    return value;
  }
  void set(const std::string& key, const Value& value) override { store_.set(key, value); }
  Value compare_and_set(const std::string& key, const std::optional<Value>& expected,
                        const Value& desired) override {
    return store_.compare_and_set(key, expected, desired);
  }

 private:
  MemoryStore store_;
  bool ended_ = false;
};

TEST_F(ControlPlane, WhoWasMissingIsNamedThoughTheStoreHasEndedSince) {
  ControlOptions own = options(0, 3);
  own.own_store = std::make_shared<EndingStore>();
  own.timeout = 50ms;
  const auto error = failure_of<PeerTimeout>(own);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->facts.rank, 1u);
  EXPECT_EQ(error->facts.phase, "rendezvous: ranks 1, 2 have not come to the store");
}

// Among founders, the higher slot of a pair dials.
TEST_F(ControlPlane, TheTroubleThatIsToldIsThatOfTheRankThatIsNamed) {
  const uint16_t closed = free_port();
  for (const bool first_came : {true, false}) {
    const auto store = std::make_shared<MemoryStore>();
    Rendezvous others(store);
    others.come(endpoint_at(1, closed));
    if (first_came) others.come(endpoint_at(0, closed));
    ControlOptions own = options(2, 3);
    own.own_store = store;
    own.timeout = 400ms;
    const auto error = failure_of<PeerTimeout>(own);
    ASSERT_TRUE(error);
    EXPECT_EQ(error->facts.rank, 0u);
    EXPECT_EQ(error->facts.phase,
              first_came ? fmt::format("rendezvous: ranks 0, 1 have not come to the store "
                                       "(127.0.0.1:{}: Connection refused)",
                                       closed)
                         : "rendezvous: rank 0 has not come to the store");
  }
}

TEST(Rendezvous, ARosterThatCannotBeReadIsAnError) {
  const auto store = std::make_shared<MemoryStore>();
  Rendezvous one(store);
  one.come(endpoint_at(0, 1));
  EXPECT_FALSE(one.roster());
  store->set("1/roster", {std::byte{1}});
  EXPECT_THROW((void)one.roster(), OsError);
}

// Its link has ended: that it once was there does not make it a founder.
TEST_F(ControlPlane, WhoDiesBeforeTheBeginningIsNoFounder) {
  Rank first(options(0, 3)), third(options(2, 3));
  std::jthread founds_first([&] { first.found(); });
  {
    ControlOptions gives_up = options(1, 3);
    gives_up.interrupt = [&] {
      if (first.control->counters().links_made != 0) throw Cancelled("test");
    };
    Rank dies(gives_up);
    EXPECT_THROW(dies.found(), Cancelled);
  }
  std::jthread founds_third([&] { third.found(); });
  const auto until = steady_clock::now() + 20s;
  while (first.control->counters().links_made < 2 && steady_clock::now() < until)
    std::this_thread::sleep_for(1ms);
  // The roster of a founder that did not care would be written by now.
  std::this_thread::sleep_for(50ms);
  Rank second(options(1, 3));
  second.found();
  founds_first.join();
  founds_third.join();
  EXPECT_EQ(first.recorder.last().next.members.at(1), second.control->self());
}

TEST_F(ControlPlane, AllThatAskRecoverTogether) {
  const auto ranks = found(3);
  for (const auto& rank : ranks) rank->control->recover();
  for (const auto& rank : ranks) {
    ASSERT_TRUE(rank->recorder.wait_for_view([](const View& view) { return view.epoch == 2; }));
    EXPECT_TRUE(rank->recorder.last().recovers);
    EXPECT_EQ(rank->recorder.last().next.members.size(), 3u);
  }
}

/// A store in which a newcomer finds the endpoint of slot 0 alone.
class NarrowStore final : public Store {
 public:
  explicit NarrowStore(std::shared_ptr<Store> store) : store_(std::move(store)) {}
  std::optional<Value> get(const std::string& key) override {
    const bool is_other = key.find("/slot/") != key.npos && !key.ends_with("/slot/0");
    return is_other ? std::nullopt : store_->get(key);
  }
  void set(const std::string& key, const Value& value) override { store_->set(key, value); }
  Value compare_and_set(const std::string& key, const std::optional<Value>& expected,
                        const Value& desired) override {
    return store_->compare_and_set(key, expected, desired);
  }

 private:
  const std::shared_ptr<Store> store_;
};

TEST_F(ControlPlane, ANewcomerLearnsOfTheOthersFromTheMemberThatItFinds) {
  const auto ranks = found(3);
  ControlOptions own = options(3, 3);
  own.slots_max = 4;
  own.own_store =
      std::make_shared<NarrowStore>(Store::open(options(0, 3).store, own.job, own.secret));
  Rank newcomer(own);
  ranks[0]->control->admit({3}, ranks[0]->control->view().epoch);
  newcomer.join();
  ASSERT_TRUE(newcomer.recorder.wait_for_members(4));
  newcomer.control->await_links();
  EXPECT_TRUE(newcomer.control->is_linked_to_all());
}

/// Of so many groups that no message holds them.
class TooTalkative final : public Participant {
 public:
  std::vector<GroupProgress> freeze(Epoch) override {
    std::vector<GroupProgress> all(200'000);
    for (size_t group = 0; group < all.size(); ++group) all[group].group = group;
    return all;
  }
  void install(const Verdict&, const Contacts&) override {}
  void fenced(Epoch epoch, const std::string& why) override {
    fenced_in = epoch;
    told.set_value(why);
  }
  void quorum_missing(const std::vector<Slot>&, uint32_t) override {}

  std::promise<std::string> told;
  std::atomic<Epoch> fenced_in = 0;
};

// The others notice by the end of its links: a silence is longer than the test.
TEST_F(ControlPlane, WhoCannotFollowTheProtocolTakesNoPartInIt) {
  const auto options_of = [&](Slot slot) {
    ControlOptions own = options(slot, 3);
    own.membership.silence = 100s;
    own.farewell = slot == 2 ? 30s : 1s;
    return own;
  };
  TooTalkative talkative;
  Control failing(options_of(2));
  std::vector<std::unique_ptr<Rank>> ranks;
  for (const Slot slot : {0u, 1u}) ranks.push_back(std::make_unique<Rank>(options_of(slot)));
  on_every_rank(3, [&](uint32_t rank) {
    if (rank == 2) return failing.found(talkative, contact_of(2));
    ranks[rank]->found();
  });
  ranks[0]->control->report_timeout({.slot = 1, .group = 0, .sequence = 1}, 1);
  auto told = talkative.told.get_future();
  ASSERT_EQ(told.wait_for(20s), std::future_status::ready);
  EXPECT_THAT(told.get(), HasSubstr("its control thread failed: "));
  EXPECT_EQ(talkative.fenced_in, 1u);
  for (const auto& rank : ranks) EXPECT_TRUE(rank->recorder.wait_for_members(2));
  // Its thread goes on until it is stopped: nobody waits for a farewell.
  const auto start = steady_clock::now();
  failing.stop();
  EXPECT_LT(steady_clock::now() - start, 15s);
}

// ---- what others are told -----------------------------------------------------------------------

/// Lines of all ranks of this process from now on.
class Lines {
 public:
  Lines() {
    setenv("TOKENYARD_LOG", "debug", 1);
    ::testing::internal::CaptureStderr();
  }
  ~Lines() {
    if (!taken_) ::testing::internal::GetCapturedStderr();
    if (before_) {
      setenv("TOKENYARD_LOG", before_->c_str(), 1);
    } else {
      unsetenv("TOKENYARD_LOG");
    }
  }
  std::string take() {
    taken_ = true;
    return ::testing::internal::GetCapturedStderr();
  }

 private:
  const std::optional<std::string> before_ = log_level();
  bool taken_ = false;
};

/// A process that knows the secret, and dials rank 0.
class Dialler {
 public:
  Dialler(const ControlEndpoint& place, const net::Introduction& self) {
    asio::co_spawn(io_, talk(place, self), asio::detached);
  }
  /// Returns the first frame of the answer.
  std::optional<net::SealedFrame> answer() {
    io_.run_for(20s);
    return std::move(answer_);
  }

 private:
  net::awaitable<void> talk(ControlEndpoint place, net::Introduction self) {
    net::TcpSocket socket(io_);
    co_await socket.async_connect({asio::ip::make_address(place.address), place.port},
                                  net::use_awaitable);
    connection_ = std::make_shared<net::Connection>(std::move(socket), 10s);
    self.sought = place.member.incarnation;
    co_await connection_->shake_hands(net::Handshake::Side::dialler,
                                      net::Key("secret", "tokenyard control tokenyard"), self);
    answer_ = co_await connection_->read();
    const std::byte garbage[] = {std::byte{99}};
    co_await connection_->write(static_cast<uint16_t>(Topic::message), garbage);
  }

  asio::io_context io_{1};
  std::shared_ptr<net::Connection> connection_;
  std::optional<net::SealedFrame> answer_;
};

class Dialled : public ControlPlane {
 protected:
  /// Dials rank 0 as a process of slot 1 that was last a member in `epoch`.
  std::optional<net::SealedFrame> answer_to(uint64_t incarnation, Epoch epoch) {
    Rendezvous rendezvous(Store::open(options(0, 2).store, "tokenyard", "secret"));
    EXPECT_TRUE(rendezvous.find_founded());
    const auto place = rendezvous.look(0);
    return Dialler(place.value(), {.purpose = net::Purpose::member,
                                   .job = fnv1a(net::as_bytes(std::string_view("tokenyard"))),
                                   .self = {1, incarnation},
                                   .epoch = epoch,
                                   .sought = 0})
        .answer();
  }
};

TEST_F(Dialled, AFormerMemberIsToldSinceWhenItIsOne) {
  const auto ranks = found(2);
  ranks[1]->control->report_timeout({.slot = 0, .group = 0, .sequence = 1}, 1);
  ASSERT_TRUE(ranks[0]->recorder.wait_for_view([](const View& view) { return view.epoch == 2; }));
  const auto former = answer_to(77, 1);
  ASSERT_TRUE(former);
  EXPECT_EQ(former->kind, static_cast<uint16_t>(Topic::refusal));
  Epoch since = 0;
  ASSERT_EQ(former->payload.size(), sizeof since);
  std::memcpy(&since, former->payload.data(), sizeof since);
  EXPECT_EQ(since, 2u);
  // It may have been admitted in an epoch of which rank 0 has not heard yet.
  const auto ahead = answer_to(78, 2);
  ASSERT_TRUE(ahead);
  EXPECT_EQ(ahead->kind, static_cast<uint16_t>(Topic::connect_reply));
}

TEST_F(Dialled, LinesNameTheRankTheEpochAndTheReason) {
  Lines lines;
  {
    const auto ranks = found(2);
    ranks[1]->control->report_timeout({.slot = 0, .group = 0xabc, .sequence = 41}, 1);
    ASSERT_TRUE(ranks[0]->recorder.wait_for_view([](const View& view) { return view.epoch == 2; }));
    EXPECT_TRUE(answer_to(79, 2));
    const auto until = steady_clock::now() + 20s;
    while (ranks[0]->control->counters().links_refused == 0 && steady_clock::now() < until)
      std::this_thread::sleep_for(1ms);
    EXPECT_EQ(ranks[0]->control->counters().links_refused, 1u);
  }
  const std::string text = lines.take();
  for (const char* line :
       {"rank 1 epoch 1: operation 41 of group abc has waited for rank 0 past its deadline",
        "rank 0 epoch 2: the epoch begins; its members: 0, 1",
        "rank 0 epoch 2: refused rank 1: it sent an invalid message"})
    EXPECT_THAT(text, HasSubstr(line));
}

}  // namespace
}  // namespace tokenyard::control::testing
