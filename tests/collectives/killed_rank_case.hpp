/// One rank's program in a job in which one rank dies at a chosen moment: a few steps of one kind
/// of operation, each repeated until it is done.
#pragma once

#include <csignal>
#include <set>
#include <thread>

#include "collectives/elastic_job.hpp"
#include "collectives/simulated/drawn_call.hpp"

namespace tokenyard::collectives {

enum class Moment { before, in, after };

/// Kinds with a result for all ranks first, then messages.
inline constexpr uint32_t kCollectiveKinds = 12, kSweptKinds = 14;

inline std::string name_of_swept(uint32_t kind) {
  static const char* const names[kSweptKinds] = {"all_reduce",
                                                 "all_reduce, coalesced",
                                                 "all_gather",
                                                 "all_gather, uneven",
                                                 "reduce_scatter",
                                                 "all_to_all",
                                                 "all_to_all, uneven",
                                                 "barrier",
                                                 "reduce",
                                                 "broadcast",
                                                 "gather",
                                                 "scatter",
                                                 "send/recv",
                                                 "send/recv, batched"};
  return names[kind];
}

struct KilledRankCase {
  uint32_t kind = 0, ranks = 0, victim = 0;
  Moment moment = Moment::before;
  uint32_t draw = 0;  ///< determines sizes and short waits
};

inline std::string name_of(const KilledRankCase& which) {
  static const char* const moments[] = {"before", "in", "after"};
  return fmt::format("{}: rank {} of {} dies {} it (draw {})", name_of_swept(which.kind),
                     which.victim, which.ranks, moments[static_cast<int>(which.moment)],
                     which.draw);
}

class SweptRank {
 public:
  /// Written by the rank, read by the test.
  struct Page {
    std::atomic<int64_t> died_at = 0, told_at = 0, good_at = 0;
    std::atomic<uint32_t> aborts_at_death = 0;  ///< of the step in which the rank died
  };

  SweptRank(KilledRankCase which, uint32_t rank, Page& page)
      : which_(which), rank_(rank), page_(page) {
    // The last use single-copy transfers if one rank gets them whole. A death between 3 moments
    // meets all 4.
    const size_t lengths[] = {1, 300, 30000, 150000};
    elements_ = lengths[which.draw % 4];
  }

  void live(const CollectivesOptions& options) {
    const auto collectives = Collectives::connect(options);
    collectives_ = collectives.get();
    for (step_ = 1; step_ <= kSteps; ++step_) {
      if (dies(Moment::before)) die();
      which_.kind < kCollectiveKinds ? operate() : talk();
      if (dies(Moment::after)) die();
    }
  }

 private:
  static constexpr uint32_t kSteps = 5, kStepOfDeath = 3;

  bool dies(Moment moment) const {
    return rank_ == which_.victim && step_ == kStepOfDeath && which_.moment == moment;
  }
  [[noreturn]] void die() {
    page_.died_at = now_ns();
    kill(getpid(), SIGKILL);
    for (;;) pause();
  }
  void die_in_it() {
    if (!dies(Moment::in)) return;
    std::this_thread::sleep_for(std::chrono::microseconds(which_.draw * 37 % 400));
    die();
  }

  /// Repeats `attempt`, each time from the beginning, until it is done.
  template <class Attempt>
  void until_done(Attempt attempt) {
    for (bool published = false;; published = true) {
      try {
        attempt();
        if (published) page_.good_at = now_ns();
        return;
      } catch (const OperationAborted&) {
        page_.told_at = now_ns();
        if (step_ == kStepOfDeath) ++page_.aborts_at_death;
        collectives_->shrink();
      }
    }
  }

  static View view_of(const std::vector<uint32_t>& ranks) {
    View view;
    for (const uint32_t rank : ranks) view.members.push_back({rank, rank + 1});
    return view;
  }

  void operate() {
    std::vector<Slot> slots;
    for (uint32_t rank = 0; rank < which_.ranks; ++rank) slots.push_back(rank);
    until_done([&] {
      const std::vector<uint32_t> active = collectives_->active_ranks();
      simulated::DrawnCall call({.self = {rank_, rank_ + 1},
                                 .rank = rank_,
                                 .slots = slots,
                                 .group = 7,
                                 .sequence = step_},
                                view_of(active),
                                {.kind = static_cast<simulated::DrawnKind>(which_.kind),
                                 .elements = elements_,
                                 .root = step_ % which_.ranks});
      try {
        Work work = call.start(collectives_->world());
        die_in_it();
        work.wait();
      } catch (const OperationAborted&) {
        testing::promise(call.touched() == 0, "an aborted operation has changed its input");
        throw;
      }
      // It may have been the last operation of its epoch, or the first of the next; a rank that has
      // done its last one leaves.
      const bool right = call.wrong(view_of(slots)) == 0 || call.wrong(view_of(active)) == 0 ||
                         call.wrong(view_of(collectives_->active_ranks())) == 0;
      testing::promise(right, "a result is wrong");
    });
  }

  /// Sends messages to others and receives theirs; then a barrier tells all ranks of the loss.
  void talk() {
    const bool batched = which_.kind == kCollectiveKinds + 1;
    std::set<uint32_t> to, from;
    for (uint32_t distance = 1; distance < which_.ranks && (batched || distance == 1); ++distance) {
      to.insert((rank_ + distance) % which_.ranks);
      from.insert((rank_ + which_.ranks - distance) % which_.ranks);
    }
    std::map<uint32_t, std::vector<int64_t>> sent, received;
    std::map<uint32_t, Work> sends, receives;
    Group world = collectives_->world();
    for (const uint32_t peer : to) {
      sent[peer].assign(elements_, said(rank_, peer));
      sends.emplace(peer, world.send({sent[peer].data(), {elements_}}, peer, step_));
    }
    for (const uint32_t peer : from) {
      received[peer].assign(elements_, -1);
      receives.emplace(peer, world.receive({received[peer].data(), {elements_}}, peer, step_));
    }
    die_in_it();
    for (auto& [peer, work] : sends) wait_unless_it_is_dead(peer, work);
    for (auto& [peer, work] : receives) {
      if (!wait_unless_it_is_dead(peer, work)) continue;
      const std::vector<int64_t> expected(elements_, said(peer, rank_));
      testing::promise(received[peer] == expected, "a message has come that was not sent");
    }
    until_done([&] { world.barrier().wait(); });
    // Only the dead rank and its partners know how far its messages were.
    page_.aborts_at_death = 1;
  }
  int64_t said(uint32_t by, uint32_t to) const { return step_ * 100 + by * 10 + to; }
  bool wait_unless_it_is_dead(uint32_t peer, Work& work) const {
    try {
      work.wait();
      return true;
    } catch (const OperationAborted& aborted) {
      testing::promise(peer == which_.victim && step_ >= kStepOfDeath,
                       "a message between survivors was lost");
      return false;
    }
  }

  const KilledRankCase which_;
  const uint32_t rank_;
  Page& page_;
  size_t elements_;
  Collectives* collectives_ = nullptr;
  uint32_t step_ = 0;
};

}  // namespace tokenyard::collectives
