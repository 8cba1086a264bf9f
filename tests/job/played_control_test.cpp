/// The ranks of a job as worlds see them, over a control plane and a clock that the test plays.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "fabric/manual_accelerator.hpp"
#include "job/process_ranks.hpp"
#include "world/job_world.hpp"

namespace tokenyard {
namespace {

using control::Member;
using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::Pair;
using ::testing::SizeIs;

constexpr Member kSelf{0, 1}, kPeer{1, 1}, kThird{2, 1}, kSuccessor{1, 2};

class PlayedControl : public ::testing::Test, private control::RankControl {
 protected:
  PlayedControl() {
    ranks_.use(*this);
    clock_.freeze();
    clock_.while_waiting = [this] { clock_.skip(milliseconds(10)); };
    install(1, {kSelf, kPeer, kThird});
    ranks_.came(kPeer);
    ranks_.came(kThird);
  }

  void install(control::Epoch epoch, std::vector<Member> members) {
    ranks_.install({.next = {.epoch = epoch, .slots = 3, .members = std::move(members)},
                    .groups = {},
                    .lost = {},
                    .left = {}});
  }
  void evict_peer(milliseconds time) {
    const std::array<uint32_t, 1> slots{kPeer.slot};
    ranks_.evict(ranks_.view(), slots, ranks_.epoch(), clock_, clock_.now() + time, [] {});
  }
  control::View await_members(milliseconds time = milliseconds(100)) {
    return ranks_.await_members(clock_, clock_.now() + time, [] {});
  }

  JobWorld world_of(
      SlotChoice choice, std::function<void()> check_ended = [] {}) {
    const std::shared_ptr<void> no_owner;
    return {{.job = nullptr,
             .ranks = std::shared_ptr<ProcessRanks>(no_owner, &ranks_),
             .check_ended = std::move(check_ended)},
            {.accelerator = std::shared_ptr<Accelerator>(no_owner, &clock_), .fabric = nullptr},
            {},
            nullptr,
            clock_.now() + milliseconds(50),
            std::move(choice)};
  }

  ProcessRanks ranks_{0, 3};
  ManualAccelerator clock_;
  std::vector<std::pair<Member, control::Epoch>> abandoned_;
  std::vector<std::byte> sent_;  ///< the last message
  bool is_linked_ = true;
  bool agrees_ = false;  ///< whether the members agree at once to go on without a rank

 private:
  void send(control::Slot, control::Bytes message) override { sent_ = *message; }
  void abandon(const Member& member, control::Epoch seen_in) override {
    abandoned_.emplace_back(member, seen_in);
    if (!agrees_) return;
    control::View next = ranks_.view();
    std::erase(next.members, member);
    install(next.epoch + 1, next.members);
  }
  bool is_linked_to_all() const override { return is_linked_; }
};

/// The slot is marked, but as its predecessor's.
TEST_F(PlayedControl, TakesASuccessorThatItDoesNotHearYetForNoneThatIsGone) {
  ranks_.gone(kPeer.slot, false);
  EXPECT_THAT(ranks_.gone_members(), ElementsAre(kPeer));
  install(2, {kSelf, kSuccessor, kThird});
  EXPECT_THAT(ranks_.gone_members(), SizeIs(0));
  ranks_.came(kSuccessor);
  EXPECT_THAT(ranks_.gone_members(), SizeIs(0));
  ranks_.gone(kPeer.slot, false);
  EXPECT_THAT(ranks_.gone_members(), ElementsAre(kSuccessor));
}

/// An earlier request may have excused the member.
TEST_F(PlayedControl, AsksToEvictAMemberAgainEverySecondAndInEveryEpoch) {
  EXPECT_THROW(evict_peer(milliseconds(2500)), PeerTimeout);
  EXPECT_THAT(abandoned_, ElementsAre(Pair(kPeer, 1), Pair(kPeer, 1), Pair(kPeer, 1)));
  abandoned_.clear();
  clock_.while_waiting = [this] {
    install(2, {kSelf, kPeer});
    clock_.skip(milliseconds(10));
  };
  EXPECT_THROW(evict_peer(milliseconds(500)), PeerTimeout);
  EXPECT_THAT(abandoned_, ElementsAre(Pair(kPeer, 1), Pair(kPeer, 2)));
}

TEST_F(PlayedControl, SaysThatTooFewAnswerWhileThatIsSo) {
  ranks_.quorum_missing({0}, 2);
  EXPECT_THROW(evict_peer(milliseconds(50)), QuorumLost);
  ranks_.quorum_missing({0, 2}, 2);
  EXPECT_THROW(evict_peer(milliseconds(50)), PeerTimeout) << "two answer again";
  ranks_.quorum_missing({0}, 2);
  install(2, {kSelf, kPeer, kThird});
  EXPECT_THROW(evict_peer(milliseconds(50)), PeerTimeout) << "they have agreed since";
}

TEST_F(PlayedControl, WaitsForMembersThatItDoesNotHearOrHasNoLinkTo) {
  EXPECT_THAT(await_members().members, SizeIs(3));
  is_linked_ = false;
  EXPECT_THROW(await_members(), PeerTimeout);
  is_linked_ = true;
  install(2, {kSelf, kSuccessor, kThird});
  try {
    await_members();
    ADD_FAILURE() << "nothing has come of the successor";
  } catch (const PeerTimeout& error) {
    EXPECT_EQ(error.facts.rank, kSuccessor.slot);
  }
  ranks_.came(kSuccessor);
  EXPECT_THAT(await_members().members, SizeIs(3));
}

TEST_F(PlayedControl, HasMembersThatAreGoneEvicted) {
  agrees_ = true;
  ranks_.gone(kPeer.slot, false);
  EXPECT_THAT(await_members().members, ElementsAre(kSelf, kThird));
  EXPECT_THAT(abandoned_, ElementsAre(Pair(kPeer, 1)));
}

/// Its rank 1 is slot 2, and slot 1 is none of its ranks.
TEST_F(PlayedControl, AWorldNamesItsRanksNotTheirSlots) {
  const auto leave_out_rank_1 = [&] {
    world_of({.slots = {0, 2}, .processes = ranks_.view()}).leave_out({1}, ranks_.epoch());
  };
  try {
    leave_out_rank_1();
    ADD_FAILURE() << "nobody agrees";
  } catch (const PeerTimeout& error) {
    EXPECT_EQ(error.facts.rank, 1u);
  }
  EXPECT_THAT(abandoned_, ElementsAre(Pair(kThird, 1)));
  ranks_.quorum_missing({0, 1, 2}, 4);
  try {
    leave_out_rank_1();
    ADD_FAILURE() << "too few answer";
  } catch (const QuorumLost& error) {
    EXPECT_THAT(error.answering, ElementsAre(0, 1));
  }
}

TEST_F(PlayedControl, AWorldOfAllSlotsNamesThem) {
  ranks_.gone(kPeer.slot, false);
  ranks_.quorum_missing({0, 2}, 3);
  try {
    world_of({}).await_members();
    ADD_FAILURE() << "too few answer";
  } catch (const QuorumLost& error) {
    EXPECT_THAT(error.answering, ElementsAre(0, 2));
  }
}

TEST_F(PlayedControl, AWorldIsNotMadeByARankThatIsOut) {
  const SlotChoice of_all{.slots = {0, 1, 2}, .processes = ranks_.view()};
  const auto out = [] { throw Fenced(2, "the others go on without it"); };
  EXPECT_THROW(world_of(of_all, out).leave_out({1}, ranks_.epoch()), Fenced);
  EXPECT_THROW(world_of(of_all, out).await_members(), Fenced);
}

TEST_F(PlayedControl, AWorldLeavesOutWhoWasExcusedBefore) {
  const SlotChoice of_all{.slots = {0, 1, 2}, .processes = ranks_.view()};
  ranks_.install({.next = {.epoch = 2, .slots = 3, .members = {kSelf, kPeer, kThird}},
                  .groups = {},
                  .lost = {},
                  .left = {},
                  .excused = {kPeer.slot}});
  EXPECT_NO_THROW(world_of(of_all).leave_out({1}, 1));
  EXPECT_THROW(world_of(of_all).leave_out({1}, 2), PeerTimeout);
}

/// The control plane ends the connection to such a peer.
TEST_F(PlayedControl, RefusesMoreMessagesThanAnyProgramLeavesUnread) {
  ranks_.send(kPeer.slot, {.generation = 1, .what = "call"});
  const std::vector<std::byte> message = sent_;
  for (size_t number = 0; number < Mailbox::kMessagesMax; ++number)
    ASSERT_TRUE(ranks_.received(kPeer.slot, message));
  EXPECT_FALSE(ranks_.received(kPeer.slot, message));
  EXPECT_TRUE(ranks_.received(kThird.slot, message));
  EXPECT_FALSE(ranks_.received(kThird.slot, {std::byte{7}})) << "it is no message";
}

}  // namespace
}  // namespace tokenyard
