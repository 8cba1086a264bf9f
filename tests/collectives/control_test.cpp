/// The control planes of several ranks, each with its own thread, in one process: they find one
/// another, notice who is gone, and let others in.
#include "collectives/control/control.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <future>
#include <random>

#include "fabric/free_port.hpp"
#include "fabric/ranks.hpp"
#include "fabric/worlds.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard::collectives {
namespace {

using namespace std::chrono_literals;
using std::chrono::steady_clock;

/// Keeps what the control plane tells it.
class Recorder final : public Participant {
 public:
  std::vector<GroupProgress> freeze(Epoch) override {
    std::unique_lock lock(mutex_);
    const std::shared_future<void> moment = until_it_freezes_;
    lock.unlock();
    if (moment.valid()) moment.wait_for(20s);
    lock.lock();
    return {{.group = 0, .slots = {}, .committed = committed_, .begun = committed_}};
  }
  void install(const Verdict& verdict, const Contacts& contacts) override {
    tell([&] {
      verdicts_.push_back(verdict);
      contacts_ = contacts;
    });
  }
  void fenced(Epoch, const std::string& why) override {
    tell([&] { fenced_ = why; });
  }
  void quorum_missing(const std::vector<Slot>& answering, uint32_t needed) override {
    tell([&] { missing_ = answering.size() < needed; });
  }

  void commit(Sequence last) {
    tell([&] { committed_ = last; });
  }
  /// Before there is a reason to freeze.
  void freeze_after(std::shared_future<void> moment) {
    tell([&] { until_it_freezes_ = std::move(moment); });
  }
  /// Until the last view satisfies it; false if it does not in time.
  template <class Condition>
  bool wait_for_view(Condition condition, std::chrono::milliseconds at_most = 20s) {
    return wait([&] { return !verdicts_.empty() && condition(verdicts_.back().next); }, at_most);
  }
  bool wait_for_members(size_t members) {
    return wait_for_view([&](const View& view) { return view.members.size() == members; });
  }
  bool wait_to_be_fenced() {
    return wait([&] { return fenced_.has_value(); });
  }
  bool wait_for_missing_quorum() {
    return wait([&] { return missing_; });
  }
  Verdict last() const {
    const std::lock_guard lock(mutex_);
    return verdicts_.back();
  }
  Contacts contacts() const {
    const std::lock_guard lock(mutex_);
    return contacts_;
  }

 private:
  template <class Change>
  void tell(Change change) {
    const std::lock_guard lock(mutex_);
    change();
    changed_.notify_all();
  }
  template <class Condition>
  bool wait(Condition condition, std::chrono::milliseconds at_most = 20s) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, at_most, condition);
  }

  Sequence committed_ = 0;
  std::shared_future<void> until_it_freezes_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Verdict> verdicts_;
  Contacts contacts_;
  std::optional<std::string> fenced_;
  bool missing_ = false;
};

/// Of slot and life, so that it can be told whose it is.
Contact contact_of(Slot slot, int life = 1) {
  return {static_cast<std::byte>(slot), static_cast<std::byte>(life)};
}

struct Rank {
  explicit Rank(const ControlOptions& options)
      : control(std::make_unique<Control>(options)), slot(options.slot) {}
  void found() { control->found(recorder, contact_of(slot)); }
  void join() { control->join(recorder, contact_of(slot, 2)); }
  Recorder recorder;
  std::unique_ptr<Control> control;
  Slot slot;
};

class ControlPlane : public ::testing::Test {
 protected:
  ControlPlane() {
    std::string pattern = ::testing::TempDir() + "tokenyard-control-XXXXXX";
    directory_ = mkdtemp(pattern.data());
  }
  ~ControlPlane() override { std::filesystem::remove_all(directory_); }

  ControlOptions options(Slot slot, uint32_t slots) const {
    ControlOptions options;
    options.store = "file:" + directory_.string();
    options.secret = "secret";
    options.slot = slot;
    options.slots = options.slots_max = slots;
    options.address = "127.0.0.1";
    options.timeout = 20s;
    options.membership.heartbeat = 20ms;
    options.membership.silence = 2s;
    options.membership.ballot = 50ms;
    options.membership.witness = true;
    return options;
  }
  std::vector<std::unique_ptr<Rank>> found(uint32_t slots) {
    std::vector<std::unique_ptr<Rank>> ranks(slots);
    on_every_rank(slots, [&](uint32_t slot) {
      ranks[slot] = std::make_unique<Rank>(options(slot, slots));
      ranks[slot]->found();
    });
    return ranks;
  }

  std::filesystem::path directory_;
};

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
    EXPECT_EQ(error.facts.phase, "rendezvous: ranks 1, 2 have not come");
    EXPECT_EQ(error.facts.seen, 1u);
  }
}

TEST_F(ControlPlane, FounderThatDiedEarlyIsReplacedByOneThatIsStartedInItsPlace) {
  ControlOptions impatient = options(0, 2);
  impatient.timeout = 200ms;
  EXPECT_THROW(Rank(impatient).found(), PeerTimeout);  // Its card stays in the store.
  const auto ranks = found(2);
  EXPECT_EQ(ranks[1]->recorder.last().next.members[0], ranks[0]->control->self());
}

TEST_F(ControlPlane, RanksThatWereToldDifferentThingsSaySo) {
  std::vector<std::unique_ptr<Rank>> ranks;
  ranks.push_back(std::make_unique<Rank>(options(0, 2)));
  ranks.push_back(std::make_unique<Rank>(options(1, 3)));
  const auto failures = run_ranks(2, [&](uint32_t rank) { ranks[rank]->found(); });
  bool told = false;
  for (const auto& failure : failures) {
    holds<InvalidArgument>(failure, [&](const InvalidArgument& error) {
      told = true;
      EXPECT_EQ(error.argument, "size");
    });
  }
  EXPECT_TRUE(told);
}

TEST_F(ControlPlane, TwoOfOneRankDoNotBothBegin) {
  ControlOptions impatient = options(1, 2);
  impatient.timeout = 1s;  // The one that came last waits for rank 0.
  Rank first(impatient), second(impatient);
  const auto failures = run_ranks(2, [&](uint32_t rank) { (rank == 0 ? first : second).found(); });
  const auto told = [](const std::exception_ptr& failure) {
    return holds<InvalidArgument>(
        failure, [](const InvalidArgument& error) { EXPECT_EQ(error.argument, "rank"); });
  };
  EXPECT_TRUE(told(failures[0]) || told(failures[1]));
}

TEST_F(ControlPlane, InterruptEndsTheWait) {
  ControlOptions interrupted = options(0, 2);
  interrupted.interrupt = [] { throw Cancelled("test"); };
  EXPECT_THROW(Rank(interrupted).found(), Cancelled);
}

TEST_F(ControlPlane, OthersGoOnWithoutOneWhoLeft) {
  auto ranks = found(3);
  ranks[0].reset();
  for (const Slot slot : {1u, 2u}) {
    ASSERT_TRUE(ranks[slot]->recorder.wait_for_members(2));
    EXPECT_THAT(ranks[slot]->recorder.last().left, ::testing::ElementsAre(0u));
  }
}

// On a machine that is short of time a goodbye takes long. Who hung up before the others had heard
// it was taken for dead; and when they had said how far they were, its last operation was undone.
TEST_F(ControlPlane, WhoTakesLongToSayGoodbyeIsNotTakenForDead) {
  auto ranks = found(3);
  ranks[0]->recorder.commit(1);
  std::promise<void> done;
  ranks[0]->recorder.freeze_after(done.get_future().share());
  std::thread slow([&] {
    std::this_thread::sleep_for(1500ms);
    done.set_value();
  });
  ranks[0].reset();
  slow.join();
  for (const Slot slot : {1u, 2u}) {
    ASSERT_TRUE(ranks[slot]->recorder.wait_for_members(2));
    const Verdict verdict = ranks[slot]->recorder.last();
    EXPECT_THAT(verdict.left, ::testing::ElementsAre(0u));
    EXPECT_EQ(verdict.groups.at(0).committed, 1u);
  }
}

// Nobody can agree to let it go, so it goes after as long as one may be silent.
TEST_F(ControlPlane, WhoLeavesWithoutAQuorumDoesNotWaitForLong) {
  const auto begin = [&](Slot slot) {
    ControlOptions own = options(slot, 4);
    own.membership.witness = false;
    auto rank = std::make_unique<Rank>(own);
    rank->found();
    return rank;
  };
  std::unique_ptr<Rank> leaves, stays;
  {
    // Killed at the end of this block.
    RankProcesses two(2, [&](uint32_t index) {
      const auto rank = begin(index + 2);
      ::pause();
    });
    on_every_rank(2, [&](uint32_t slot) { (slot == 0 ? leaves : stays) = begin(slot); });
    // Both at once: while one was still there, three could agree to go on without the other.
    for (const uint32_t index : {0u, 1u}) two.signal(index, SIGSTOP);
  }
  ASSERT_TRUE(leaves->recorder.wait_for_missing_quorum());
  const auto start = steady_clock::now();
  leaves.reset();
  EXPECT_LT(steady_clock::now() - start, 15s);  // the job's timeout is 20 s
}

TEST_F(ControlPlane, NewcomerTakesThePlaceOfOneWhoLeft) {
  auto ranks = found(3);
  ranks[0].reset();
  ASSERT_TRUE(ranks[1]->recorder.wait_for_members(2));
  Rank newcomer(options(0, 3));
  std::thread joining([&] { newcomer.join(); });
  ranks[2]->control->admit({0});
  joining.join();
  for (Recorder* recorder : {&newcomer.recorder, &ranks[1]->recorder, &ranks[2]->recorder}) {
    ASSERT_TRUE(recorder->wait_for_view(
        [&](const View& view) { return view.contains(newcomer.control->self()); }));
    EXPECT_EQ(recorder->contacts().at(0), contact_of(0, 2));
    EXPECT_EQ(recorder->contacts().at(1), contact_of(1));
  }
}

TEST_F(ControlPlane, JobGrows) {
  auto ranks = found(2);
  std::vector<std::unique_ptr<Rank>> more;
  for (const Slot slot : {2u, 3u}) {
    ControlOptions newcomer = options(slot, 2);
    newcomer.slots_max = 4;
    more.push_back(std::make_unique<Rank>(newcomer));
  }
  ranks[0]->control->admit({2, 3});
  on_every_rank(2, [&](uint32_t rank) { more[rank]->join(); });
  for (auto& rank : {&ranks[0], &ranks[1], &more[0], &more[1]}) {
    EXPECT_TRUE((*rank)->recorder.wait_for_members(4))
        << "rank " << (*rank)->slot << " is in epoch " << (*rank)->control->view().epoch;
  }
}

TEST_F(ControlPlane, NewcomerThatNobodyAdmitsIsTold) {
  const auto ranks = found(2);
  ControlOptions unwanted = options(1, 2);
  unwanted.timeout = 300ms;
  try {
    Rank(unwanted).join();
    FAIL() << "it was let in";
  } catch (const PeerTimeout& error) {
    EXPECT_EQ(error.facts.phase, "join: wait to be admitted");
  }
}

TEST_F(ControlPlane, ReplacementFencesWhomItReplaces) {
  const auto ranks = found(3);
  Rank newcomer(options(1, 3));
  ranks[0]->control->admit({1});
  newcomer.join();
  EXPECT_TRUE(ranks[1]->recorder.wait_to_be_fenced());
  EXPECT_TRUE(ranks[2]->recorder.wait_for_view(
      [&](const View& view) { return view.contains(newcomer.control->self()); }));
}

TEST_F(ControlPlane, StallIsReportedByTheEngineAndEndsTheEpoch) {
  const auto ranks = found(3);
  ranks[0]->control->suspect(2, Suspicion::stall, 1);
  for (const auto& rank : ranks) {
    EXPECT_TRUE(rank->recorder.wait_for_view([](const View& view) { return view.epoch == 2; }));
    EXPECT_EQ(rank->recorder.last().next.members.size(), 3u);
  }
}

// Its engine is in the middle of something large: its heartbeats go on, and nobody begins without
// it, though that takes longer than a rank may be silent.
TEST_F(ControlPlane, WhoTakesLongToFreezeIsWaitedFor) {
  auto ranks = found(3);
  std::promise<void> done;
  ranks[2]->recorder.freeze_after(done.get_future().share());
  ranks[0]->control->suspect(1, Suspicion::stall, 1);
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
    // Where rank 0 listens is written on its card.
    Rendezvous rendezvous(Store::open(options(0, 2).store, "tokenyard", "secret"));
    EXPECT_TRUE(rendezvous.find_founded());
    const auto card = rendezvous.look(0);
    return TcpEndpoint(asio::ip::make_address(card->address), card->port);
  }();
  asio::io_context io;
  std::vector<TcpSocket> silent;
  std::mt19937 random(3);
  constexpr int kStrangers = 200;
  for (int stranger = 0; stranger < kStrangers; ++stranger) {
    TcpSocket socket(io);
    socket.connect(where);
    Handshake honest(
        Handshake::Side::dialler, Key("guess", "tokenyard control tokenyard"),
        {.purpose = Purpose::member, .job = 1, .self = {1, 5}, .epoch = 1, .sought = 0});
    auto bytes = honest.take_output();
    asio::error_code closed;
    switch (stranger % 4) {
      case 0:
        for (auto& byte : bytes) byte = static_cast<std::byte>(random());
        break;
      case 1:
        bytes.resize(random() % bytes.size());
        break;
      case 2:  // All of a hello, and a proof that is none.
        bytes.resize(bytes.size() + sizeof(Digest));
        break;
      default:  // Says nothing, and stays.
        bytes.clear();
    }
    asio::write(socket, asio::buffer(bytes), closed);
    if (stranger % 4 == 3) silent.push_back(std::move(socket));
  }
  const auto until = steady_clock::now() + 20s;
  while (ranks[0]->control->refused() < kStrangers && steady_clock::now() < until) {
    std::this_thread::sleep_for(5ms);
  }
  EXPECT_EQ(ranks[0]->control->refused(), static_cast<uint64_t>(kStrangers));
  EXPECT_EQ(ranks[1]->control->view().epoch, 1u);
  // Rank 0 still answers.
  ranks[1]->control->suspect(0, Suspicion::stall, 1);
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
}  // namespace tokenyard::collectives
