// How a group ends, each rank in its own time:
//
//     close()    no operation is accepted any more; those under way run to their end
//     1st round  "I have closed the group": a rank that leaves it knows that all have
//     2nd round  "I know that all have": a rank that leaves it knows that all know, and forgets
//                the group
//
// Both rounds are commit rounds (call.hpp). A rank in the second round reports the group as closed
// at the next freeze, so the verdict tells the ranks that are still in the first.
//
// Invariant: a rank forgets a group only when every rank that took part in its last operation knows
// whether that operation is done. So a verdict never lacks what one of them has committed.
//
// Invariant: a rank that has taken part in no operation since it came has nothing to report, and is
// not waited for.

#include <fmt/format.h>

#include <algorithm>

#include "collectives/engine/operation_queue.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard::collectives {

namespace {

/// How long a rank polls on its own account for the parting of a group that it no longer uses.
/// Afterwards it looks when other operations run, and occasionally.
constexpr Instant attentive_to_closing = std::chrono::milliseconds(250);

}  // namespace

bool OperationQueue::idle(Instant now) const {
  if (!queue_.empty() || (talk_ && !talk_->drained())) return false;
  return stage_ == GroupStage::open || now >= attentive_until_;
}

void OperationQueue::close(Instant now) {
  if (stage_ == GroupStage::open) stage_ = GroupStage::closing;
  attentive_until_ = now + attentive_to_closing;
  over_ = over_ || failed_ != nullptr;
}

void OperationQueue::begin_parting(Instant now) {
  prepare_attempt();
  parting_.emplace(*attempt_);
  Team& team = parting_->team;
  std::erase_if(team.ranks, [&](uint32_t rank) {
    const auto member = context_.view.at(identity_.slots[rank]);
    return std::find(last_committed_.begin(), last_committed_.end(), *member) ==
           last_committed_.end();
  });
  team.me = team.place_of(identity_.self);
  if (team.me == team.size() || team.size() == 1 ||
      context_.mutant == EngineMutant::forgotten_when_closed) {
    over_ = true;
    return;
  }
  began_ = now;
  talk_->begin(committed_ + 1, {.kind = OperationKind::close});
  phase_ = Phase::parting;
  run_.begin(part());
}

Task OperationQueue::part() {
  Task closed = commit_round(*parting_);
  co_await closed;
  stage_ = GroupStage::closed;
  Task known = commit_round(*parting_);
  co_await known;
}

/// Called as an epoch begins. Returns whether this queue has ended.
bool OperationQueue::end_parting(const GroupProgress* published) {
  if (phase_ == Phase::parting) {
    run_.stop();
    phase_ = Phase::idle;
  }
  parting_.reset();
  const bool closed = stage_ == GroupStage::closed ||
                      (published != nullptr && published->stage == GroupStage::closed);
  if (!closed) return false;
  const bool agreed = stage_ != GroupStage::open && queue_.empty();
  fail(std::make_exception_ptr(InvalidArgument("group", "a group that no rank has closed",
                                               fmt::format("\"{}\"", identity_.name))));
  over_ = over_ || agreed;
  return true;
}

}  // namespace tokenyard::collectives
