#include "fabric/bootstrap.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <span>
#include <utility>

#include "fabric/in_process_mesh.hpp"
#include "fabric/manual_accelerator.hpp"
#include "fabric/ranks.hpp"

namespace tokenyard {
namespace {

using std::chrono::milliseconds;

/// Ample time for what should happen at once, on any machine.
constexpr milliseconds kSoon{30'000};

/// One rank's end of an in-process world.
struct End {
  explicit End(std::shared_ptr<InProcessMesh> end)
      : mesh(std::move(end)),
        abort_flag(std::make_unique<AbortFlag>(accelerator, mesh->slots())),
        talk(std::make_unique<Bootstrap>(mesh, Membership::of(*mesh), accelerator, *abort_flag)) {}

  TimePoint in(milliseconds time) { return accelerator.now() + time; }
  TimePoint soon() { return in(kSoon); }
  /// Agrees on the world of the present ranks but these, as threads do.
  Membership agree_without(const std::vector<uint32_t>& ranks, TimePoint until) {
    Membership next = talk->membership().without(ranks);
    next.generation = talk->agree_on_generation(next.slots, "rebuild", until, {});
    return next;
  }
  void go() {
    talk.reset();
    mesh.reset();
  }

  ManualAccelerator accelerator;
  std::shared_ptr<InProcessMesh> mesh;
  std::unique_ptr<AbortFlag> abort_flag;
  std::unique_ptr<Bootstrap> talk;
};

std::vector<std::unique_ptr<End>> ends(uint32_t ranks) {
  std::vector<std::unique_ptr<End>> made;
  for (auto& mesh : InProcessMesh::make(ranks)) made.push_back(std::make_unique<End>(mesh));
  return made;
}

Message rebuild_request(uint32_t generation, const std::vector<uint32_t>& slots) {
  return {
      .kind = MessageKind::rebuild, .generation = generation, .what = "rebuild", .slots = slots};
}

std::vector<std::byte> bytes_of(uint32_t rank) {
  return std::vector<std::byte>(rank, static_cast<std::byte>(rank));
}

TEST(Bootstrap, GathersInRankOrderWhateverTheLengths) {
  for (const uint32_t ranks : {1u, 2u, 5u}) {
    const auto world = ends(ranks);
    on_every_rank(ranks, [&](uint32_t rank) {
      End& me = *world[rank];
      for (int round = 0; round < 20; ++round) {
        const auto all = me.talk->all_gather(bytes_of(rank), "sizes", me.soon());
        ASSERT_EQ(all.size(), ranks);
        for (uint32_t peer = 0; peer < ranks; ++peer) EXPECT_EQ(all[peer], bytes_of(peer));
        me.talk->barrier("round", me.soon());
      }
    });
  }
}

TEST(Bootstrap, NamesTheRankThatDoesNotCome) {
  const auto world = ends(3);
  // A rank that waits has already sent its message. Once both wait, time runs out.
  std::atomic<uint32_t> waiting = 0;
  const auto failures = run_ranks(2, [&](uint32_t rank) {
    End& me = *world[rank];
    me.accelerator.while_waiting = [&, counted = false]() mutable {
      if (!std::exchange(counted, true)) ++waiting;
      if (waiting == 2) me.accelerator.skip(kSoon);
    };
    me.talk->barrier("'lunch'", me.soon());
  });
  for (const auto& failure : failures) {
    EXPECT_TRUE(holds<PeerTimeout>(failure, [](const PeerTimeout& error) {
      EXPECT_EQ(error.facts.rank, 2u);
      EXPECT_EQ(error.facts.phase, "barrier 'lunch'");
      EXPECT_EQ(error.facts.expected, 2u);
      EXPECT_EQ(error.facts.seen, 1u);
      EXPECT_GE(error.facts.waited_s, std::chrono::duration<double>(kSoon).count());
    }));
  }
}

TEST(Bootstrap, TellsRanksThatMakeDifferentCalls) {
  const auto world = ends(2);
  const auto failures = run_ranks(2, [&](uint32_t rank) {
    End& me = *world[rank];
    if (rank == 0) me.talk->barrier("a", me.soon());
    if (rank == 1) me.talk->all_gather({}, "b", me.soon());
  });
  EXPECT_TRUE(holds<InvalidArgument>(failures[0], [](const InvalidArgument& error) {
    EXPECT_EQ(error.expected, "'barrier a'");
    EXPECT_EQ(error.seen, "'all_gather b'");
    EXPECT_EQ(error.rank, 1u);
  }));
  EXPECT_TRUE(holds<InvalidArgument>(
      failures[1], [](const InvalidArgument& error) { EXPECT_EQ(error.rank, 0u); }));
}

TEST(Bootstrap, AnExchangeGivenUpIsNotTakenForTheNext) {
  const auto world = ends(2);
  const auto late = run_ranks(1, [&](uint32_t) {
    world[0]->talk->all_gather(bytes_of(3), "first", world[0]->in(milliseconds(20)));
  });
  EXPECT_TRUE(holds<PeerTimeout>(late[0], [](const PeerTimeout&) {}));
  on_every_rank(2, [&](uint32_t rank) {
    End& me = *world[rank];
    if (rank == 1) me.talk->all_gather(bytes_of(1), "first", me.soon());
    const auto all = me.talk->all_gather(bytes_of(rank), "second", me.soon());
    EXPECT_EQ(all[0], bytes_of(0));
    EXPECT_EQ(all[1], bytes_of(1));
  });
}

TEST(Bootstrap, ARankThatVanishesIsLostAndRingsTheBell) {
  const auto world = ends(3);
  const auto failures = run_ranks(3, [&](uint32_t rank) {
    if (rank == 1) return world[1]->mesh->vanish();
    world[rank]->talk->barrier("x", world[rank]->soon());
  });
  for (const uint32_t rank : {0u, 2u}) {
    EXPECT_TRUE(holds<PeerLost>(failures[rank], [](const PeerLost& error) {
      EXPECT_EQ(error.facts.rank, 1u);
      EXPECT_EQ(error.facts.phase, "barrier x");
    }));
    EXPECT_EQ(world[rank]->abort_flag->lost_ranks(), std::vector<uint32_t>{1});
    EXPECT_EQ(*world[rank]->abort_flag->word(), abort_for_lost(1));
  }
}

TEST(Bootstrap, ARankThatLeavesIsNotWaitedFor) {
  const auto world = ends(2);
  // Messages that rank 1 sent before it left still count.
  const auto failures = run_ranks(2, [&](uint32_t rank) {
    End& me = *world[rank];
    me.talk->barrier("last", me.soon());
    if (rank == 1) return me.go();
    me.talk->barrier("one more", me.soon());
  });
  EXPECT_FALSE(failures[1]);
  EXPECT_TRUE(holds<PeerLost>(failures[0], [](const PeerLost& error) {
    EXPECT_EQ(error.facts.rank, 1u);
    EXPECT_EQ(error.facts.phase, "barrier one more (it left the world)");
  }));
  EXPECT_EQ(world[0]->abort_flag->word()[0], kLeft);
  EXPECT_EQ(world[0]->abort_flag->word()[1 + 0], kNoAbort);
  EXPECT_EQ(world[0]->abort_flag->word()[1 + 1], kLeft);
  EXPECT_TRUE(world[0]->abort_flag->has_left(1));
}

TEST(Bootstrap, ALossRingsAfterAGoodbye) {
  const auto world = ends(3);
  AbortWord words[3]{};
  world[1]->go();
  world[0]->abort_flag->watch(words);
  EXPECT_EQ(words[1], kLeft) << "rank 1 left before the watch began";
  world[2]->mesh->vanish();
  EXPECT_EQ(*world[0]->abort_flag->word(), abort_for_lost(2));
  EXPECT_EQ(words[2], abort_for_lost(2));
  world[0]->abort_flag->unwatch(words);
}

/// Among threads, a rank may say goodbye first: its memory stays until all have ended.
TEST(Bootstrap, AGoodbyeMayComeBeforeTheEnd) {
  const auto world = ends(2);
  struct Recorder final : Mailbox::Watcher {
    void went(uint32_t, PeerState state) override { told.push_back(state); }
    void said(uint32_t, const Message&) override {}
    std::vector<PeerState> told;
  } recorder;
  world[0]->mesh->mailbox().watch(recorder);
  const auto failures = run_ranks(2, [&](uint32_t rank) {
    End& me = *world[rank];
    me.talk->barrier("last", me.soon());
    if (rank == 1) return me.mesh->leave();
    me.talk->barrier("one more", me.soon());
  });
  EXPECT_TRUE(holds<PeerLost>(failures[0], [](const PeerLost& error) {
    EXPECT_EQ(error.facts.phase, "barrier one more (it left the world)");
  }));
  // However often it is called: nothing is sent to a rank that is gone.
  for (size_t i = 0; i < 2 * Mailbox::kMessagesMax; ++i)
    EXPECT_THROW(world[0]->talk->barrier("again", world[0]->soon()), PeerLost);
  world[1]->go();
  EXPECT_EQ(recorder.told, std::vector{PeerState::left});
  world[0]->mesh->mailbox().unwatch(recorder);
}

TEST(Bootstrap, CancelEndsAWait) {
  const auto world = ends(2);
  const auto failures = run_ranks(2, [&](uint32_t rank) {
    if (rank == 0) world[0]->talk->barrier("x", world[0]->soon());
    if (rank == 1) world[0]->abort_flag->cancel();
  });
  EXPECT_TRUE(holds<Cancelled>(failures[0], [](const Cancelled&) {}));
}

TEST(Bootstrap, SurvivorsAgreeAndAreRenumbered) {
  const auto world = ends(4);
  world[1]->mesh->vanish();
  on_every_rank(4, [&](uint32_t rank) {
    if (rank == 1) return;
    End& me = *world[rank];
    const Membership next = me.agree_without({1, 1}, me.soon());
    EXPECT_EQ(next.slots, (std::vector<uint32_t>{0, 2, 3}));
    EXPECT_EQ(next.rank, rank == 0 ? 0 : rank - 1);
    EXPECT_GT(next.generation, me.talk->generation());

    AbortFlag abort_flag(me.accelerator, 3);  // Every world has its own.
    Bootstrap smaller(me.mesh, next, me.accelerator, abort_flag);
    const auto all = smaller.all_gather(bytes_of(rank), "after", me.soon());
    EXPECT_EQ(all, (std::vector{bytes_of(0), bytes_of(2), bytes_of(3)}));
    // A message of the previous world, as a stopped rank may send when it resumes.
    for (const uint32_t peer : next.slots) {
      if (peer != rank) me.mesh->send(peer, {.generation = 1, .sequence = 1, .what = "stale"});
    }
    smaller.barrier("undisturbed", me.soon());
  });
}

/// Rank 0 has seen all of them and asks for another world before rank 2 has looked: rank 2 returns
/// too, whether the last rank came and went or went before it came.
TEST(Bootstrap, OfABarrierOfSurvivorsAllReturnOrNone) {
  for (const bool came : {true, false}) {
    const auto world = ends(3);
    const auto check = [&](End& me) {
      return [&me](uint32_t rank) {
        const auto asked = me.mesh->mailbox().latest_rebuild(rank);
        if (asked && asked->generation > 1) throw Cancelled("begun anew");
      };
    };
    if (came) world[1]->mesh->send(0, {.generation = 1, .sequence = 0, .what = "barrier made"});
    world[1]->mesh->leave();
    world[2]->mesh->send(0, {.generation = 1, .sequence = 0, .what = "barrier made"});
    world[0]->talk->barrier("made", world[0]->soon(), check(*world[0]));
    EXPECT_THROW(world[0]->agree_without({1}, world[0]->in(milliseconds(5))), PeerTimeout);
    world[2]->talk->barrier("made", world[2]->soon(), check(*world[2]));
    // A rank that asks for another world before it has come does not come any more.
    EXPECT_THROW(world[2]->talk->barrier("next", world[2]->soon(), check(*world[2])), Cancelled);
  }
}

/// Rank 2's message has reached rank 0 and not rank 1, which goes on without it: rank 0 still waits
/// for rank 1, which lives and sends nothing more in this world.
TEST(Bootstrap, ARankThatHasGoneOnIsNotWaitedFor) {
  const auto world = ends(3);
  world[2]->mesh->send(0, {.generation = 1, .sequence = 0, .what = "barrier x"});
  world[2]->mesh->vanish();
  EXPECT_THROW(world[1]->agree_without({2}, world[1]->in(milliseconds(5))), PeerTimeout);
  const auto failures =
      run_ranks(1, [&](uint32_t) { world[0]->talk->barrier("x", world[0]->soon()); });
  EXPECT_TRUE(
      holds<PeerLost>(failures[0], [](const PeerLost& error) { EXPECT_EQ(error.facts.rank, 2u); }));
}

/// Whichever of the two a rank hears first.
TEST(Bootstrap, ARankThatHasGoneOnEndsTheWaitsOfKernels) {
  for (const bool asks_first : {true, false}) {
    const auto world = ends(3);
    AbortWord words[3]{};
    world[0]->abort_flag->watch(words);
    if (!asks_first) world[2]->mesh->vanish();
    world[1]->mesh->send(0, rebuild_request(2, {0, 1}));
    if (asks_first) {
      EXPECT_EQ(words[1], kNoAbort) << "rank 2 may be another's loss, or leave";
      world[2]->mesh->vanish();
    }
    EXPECT_EQ(words[1], kLeft);
    EXPECT_EQ(world[0]->abort_flag->gone_ranks(), std::vector<uint32_t>{2});
    world[0]->abort_flag->unwatch(words);
  }
}

/// It may ask for the same world later, as one that has a world which this rank failed to make.
TEST(Bootstrap, ARankThatHasGoneOnMayBeMetAgain) {
  const auto world = ends(2);
  world[1]->talk->say_gone_on();
  EXPECT_TRUE(world[0]->abort_flag->has_gone_on(1));
  EXPECT_THROW(world[0]->talk->barrier("x", world[0]->soon()), PeerLost);
  on_every_rank(2, [&](uint32_t rank) {
    End& me = *world[rank];
    EXPECT_EQ(me.talk->agree_on_generation({0, 1}, "world", me.soon(), [] {}), 2u);
  });
}

// A job may make another world of the same ranks beside this one, and go on to use both.
TEST(Bootstrap, ARankThatHasALaterWorldOfAllIsWaitedFor) {
  const auto world = ends(3);
  EXPECT_THROW(
      world[1]->talk->agree_on_generation({0, 1, 2}, "world", world[1]->in(milliseconds(5)), [] {}),
      PeerTimeout);
  world[2]->mesh->send(0, {.generation = 1, .sequence = 0, .what = "barrier x"});
  world[2]->mesh->vanish();
  const auto failures =
      run_ranks(1, [&](uint32_t) { world[0]->talk->barrier("x", world[0]->in(milliseconds(20))); });
  EXPECT_TRUE(holds<PeerTimeout>(
      failures[0], [](const PeerTimeout& error) { EXPECT_EQ(error.facts.rank, 1u); }));
}

TEST(Bootstrap, CallsOfDifferentNamesDoNotAgree) {
  const auto world = ends(2);
  const auto failures = run_ranks(2, [&](uint32_t rank) {
    End& me = *world[rank];
    me.talk->agree_on_generation({0, 1}, rank == 0 ? "rebuild" : "world", me.in(milliseconds(20)),
                                 [] {});
  });
  for (const auto& failure : failures)
    EXPECT_TRUE(holds<PeerTimeout>(failure, [](const PeerTimeout&) {}));
}

TEST(Bootstrap, SurvivorsThatDisagreeAreToldBothLists) {
  const auto world = ends(4);
  const auto failures = run_ranks(2, [&](uint32_t rank) {
    End& me = *world[rank];
    me.agree_without(rank == 0 ? std::vector<uint32_t>{3} : std::vector<uint32_t>{2, 3}, me.soon());
  });
  EXPECT_TRUE(holds<InvalidArgument>(failures[0], [](const InvalidArgument& error) {
    EXPECT_EQ(error.argument, "without");
    EXPECT_EQ(error.expected, "[3]");
    EXPECT_EQ(error.seen, "[2, 3]");
  }));
  EXPECT_TRUE(holds<InvalidArgument>(failures[1], [](const InvalidArgument& error) {
    EXPECT_EQ(error.expected, "[2, 3]");
    EXPECT_EQ(error.seen, "[3]");
    EXPECT_EQ(error.rank, 0u);
  }));
}

TEST(Bootstrap, ASurvivorMayLearnOfMoreDeathsAndAskAgain) {
  const auto world = ends(4);
  // Rank 1 gives rank 0 time to change its mind, and that must not run out here.
  world[1]->accelerator.freeze();
  on_every_rank(2, [&](uint32_t rank) {
    End& me = *world[rank];
    if (rank == 0) {
      // Rank 2 dies while rank 0 rebuilds without 3: nobody answers, or rank 1 already knows.
      EXPECT_THROW(me.agree_without({3}, me.in(milliseconds(30))), Error);
    }
    const Membership next = me.agree_without({2, 3}, me.soon());
    EXPECT_EQ(next.slots, (std::vector<uint32_t>{0, 1}));
  });
}

/// Rank 0 fails between two exchanges of the new world, as it does if it gets no memory. Messages
/// that rank 1 has sent into that world by then must not disturb the next attempt.
TEST(Bootstrap, ARebuildThatFailedMidwayIsTriedAgain) {
  const auto world = ends(2);
  on_every_rank(2, [&](uint32_t rank) {
    End& me = *world[rank];
    for (int failed = 0; failed < 3; ++failed) {
      const Membership next = me.agree_without({}, me.soon());
      Bootstrap half_made(me.mesh, next, me.accelerator, *me.abort_flag);
      half_made.barrier("hosts", me.soon());
      if (rank == 1) {
        EXPECT_THROW(half_made.barrier("arenas", me.in(milliseconds(20))), PeerTimeout);
      }
    }
    const Membership next = me.agree_without({}, me.soon());
    Bootstrap whole(me.mesh, next, me.accelerator, *me.abort_flag);
    whole.barrier("hosts", me.soon());
    whole.barrier("arenas", me.soon());
  });
}

/// A rank that gave up before the others came, or tried again before they noticed, still ends in
/// the same world as they do.
TEST(Bootstrap, RanksThatTriedADifferentNumberOfTimesAgree) {
  const auto world = ends(3);
  std::vector<Membership> next(3);
  std::latch all_have_agreed(3), rank_0_gave_up_again(1);
  on_every_rank(3, [&](uint32_t rank) {
    End& me = *world[rank];
    if (rank == 0) {
      EXPECT_THROW(me.agree_without({}, me.in(milliseconds(5))), PeerTimeout);
      EXPECT_THROW(me.agree_without({}, me.in(milliseconds(5))), PeerTimeout);
    }
    me.talk->barrier("rank 0 has given up twice", me.soon());
    const Membership first = me.agree_without({}, me.soon());
    all_have_agreed.arrive_and_wait();  // A later one could answer rank 0's next question.
    // Rank 0 fails at once, and asks again before the others notice.
    if (rank == 0) {
      EXPECT_THROW(me.agree_without({}, me.in(milliseconds(5))), PeerTimeout);
      rank_0_gave_up_again.count_down();
    } else {
      Bootstrap half_made(me.mesh, first, me.accelerator, *me.abort_flag);
      rank_0_gave_up_again.wait();
      EXPECT_THROW(half_made.barrier("hosts", me.in(milliseconds(5))), PeerTimeout);
    }
    next[rank] = me.agree_without({}, me.soon());
    Bootstrap whole(me.mesh, next[rank], me.accelerator, *me.abort_flag);
    whole.barrier("hosts", me.soon());
    EXPECT_GT(next[rank].generation, first.generation);
  });
  for (const Membership& theirs : next) EXPECT_EQ(theirs.generation, next[0].generation);
}

}  // namespace
}  // namespace tokenyard
