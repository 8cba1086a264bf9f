// How a group's queue handles failures: ranks make different calls, do not come, or are lost.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "collectives/engine/operation_queue.hpp"
#include "collectives/engine/stopped.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard::collectives {

namespace {

/// Time after a deadline in which the ranks should agree on what has happened.
constexpr Instant connection_timer = std::chrono::seconds(2);

/// The remedy after a failure that some ranks may not know.
constexpr std::string_view continued_by =
    "Collectives.recover or shrink, on every rank, continues it";

/// Minimum time of an operation in a new epoch: another rank's deadline may have begun that epoch,
/// and its report may still be on its way.
constexpr Instant second_chance = std::chrono::milliseconds(100);

std::string have_not_begun(const std::vector<uint32_t>& ranks) {
  const bool one = ranks.size() == 1;
  return fmt::format(": rank{} {} ha{} not begun it", one ? "" : "s", fmt::join(ranks, ", "),
                     one ? "s" : "ve");
}

}  // namespace

void OperationQueue::refuse(const Refusal& refusal) {
  // No rank has committed: a rank that made another call must enter the round too, and the first
  // rank to hear its frames refuses them.
  run_.stop();
  parting_.reset();
  refusal_ = refusal;
  phase_ = Phase::refusing;
  talk_->refuse(attempt_->team.ranks, refusal);
}

void OperationQueue::finish_refusal() {
  const bool mine_is_other = refusal_.other == identity_.self;
  const uint32_t with = mine_is_other ? refusal_.one : refusal_.other;
  const auto text = [&](uint32_t rank, const Signature& called, uint64_t bytes) {
    const bool lengths_differ = refusal_.one_called == refusal_.other_called;
    return fmt::format("{} on rank {}{}", describe(called), rank,
                       lengths_differ ? fmt::format(" with {} bytes", bytes) : "");
  };
  const std::string one = text(refusal_.one, refusal_.one_called, refusal_.one_bytes);
  const std::string other = text(refusal_.other, refusal_.other_called, refusal_.other_bytes);
  const std::string what =
      fmt::format("operation {} of group \"{}\"", committed_ + 1, identity_.name);
  // Nothing of the operation is under way any more, so the caller owns its arrays again.
  undo_.restore();
  ++committed_;  // counted as done, though without effect
  if (queue_.empty()) {
    phase_ = Phase::idle;  // others called an operation of a group that this rank has closed
    return;
  }
  if (refusal_.one == refusal_.other) {
    return finish_head(std::make_exception_ptr(
        InvalidArgument(what, unplaced_parts(),
                        fmt::format("{} on rank {} with {} parts", describe(refusal_.one_called),
                                    refusal_.one, refusal_.one_bytes),
                        refusal_.one)));
  }
  finish_head(std::make_exception_ptr(
      InvalidArgument(what, mine_is_other ? other : one, mine_is_other ? one : other, with)));
}

void OperationQueue::fail_locally(std::exception_ptr error, Instant now) {
  if (queue_.empty()) {  // it was parting
    open_frame_protocol();
    take_back();
    unusable_ = true;
    return;
  }
  const bool quiet = talk_->push();
  take_back();
  if (quiet) {
    const WaitFacts facts = {.rank = identity_.self,
                             .phase = title(*queue_.front()) + ": it failed on that rank",
                             .expected = committed_ + 1,
                             .seen = committed_};
    talk_->post_breakage(attempt_->team.ranks, Breakage::of(facts));
  } else {
    open_frame_protocol();  // frames are half sent, from memory that the caller gets back
  }
  unusable_ = true;
  break_with(error, title(*queue_.front()) + " went wrong on this rank", now);
}

void OperationQueue::break_by_peer(const WaitFacts& facts, Instant now) {
  take_back();
  unusable_ = true;
  if (queue_.empty()) return;  // it was parting, and others had called an operation
  std::exception_ptr error = std::make_exception_ptr(PeerTimeout(facts));
  std::string why = why_expired(facts);
  if (facts.rank == identity_.self) {
    // The others have waited for this very rank, so their report names it; explain it here.
    why = fmt::format("this rank came too late to {}, for which the others waited {:.3f} s",
                      title(*queue_.front()), facts.waited_s);
    error = with_sentence(error, fmt::format("{} has not happened: {}. {}", title(*queue_.front()),
                                             why, continued_by));
  }
  break_with(error, std::move(why), now);
}

std::string OperationQueue::why_expired(const WaitFacts& facts) const {
  const bool known = facts.rank != identity_.self;
  return fmt::format("{} was not done within {:.3f} s{}", title(*queue_.front()), facts.waited_s,
                     known ? fmt::format(", for want of rank {}", facts.rank) : "");
}

void OperationQueue::break_with(const std::exception_ptr& error, std::string why, Instant now) {
  failure_ = {.known_in = context_.view.epoch,
              .error = error,
              .lost = {},
              .at = now,
              .why = std::move(why)};
  if (!queue_.empty()) finish_head(error);
  for (Sequence sequence = committed_ + 2; !queue_.empty(); ++sequence) {
    finish_head(refused(*queue_.front(), sequence));
  }
}

std::exception_ptr OperationQueue::aborted(const Operation& operation, Sequence sequence) const {
  std::vector<uint32_t> lost;
  for (const auto& [rank, known_in] : failure_->lost) lost.push_back(rank);
  // The ranks were lost in the previous epoch.
  return std::make_exception_ptr(OperationAborted(name_of(operation.call.signature.kind), sequence,
                                                  failure_->known_in - 1, std::move(lost)));
}

std::exception_ptr OperationQueue::refused(const Operation& operation, Sequence sequence) const {
  const double ago = std::chrono::duration<double>(operation.called - failure_->at).count();
  const auto sentence = [&](std::string_view why, std::string_view continued) {
    return fmt::format("{} was not begun: the group stopped in epoch {}, {:.3f} s before: {}. {}",
                       title(operation, sequence), failure_->known_in, std::max(ago, 0.0), why,
                       continued);
  };
  if (failure_->error) return with_sentence(failure_->error, sentence(failure_->why, continued_by));
  std::vector<uint32_t> lost;
  for (const auto& [rank, known_in] : failure_->lost) lost.push_back(rank);
  return with_sentence(
      aborted(operation, sequence),
      sentence(fmt::format("rank{} {} {} lost", lost.size() == 1 ? "" : "s", fmt::join(lost, ", "),
                           lost.size() == 1 ? "was" : "were"),
               "Collectives.recover, replace or shrink continues it"));
}

void OperationQueue::break_for(const std::vector<uint32_t>& lost, Instant now) {
  std::map<uint32_t, Epoch> all;
  if (failure_ && !failure_->error) all = std::move(failure_->lost);
  for (const uint32_t rank : lost) all[rank] = context_.view.epoch;
  failure_ = {.known_in = context_.view.epoch,
              .error = nullptr,
              .lost = std::move(all),
              .at = now,
              .why = {}};
  for (Sequence sequence = committed_ + 1; !queue_.empty(); ++sequence) {
    finish_head(aborted(*queue_.front(), sequence));
  }
}

void OperationQueue::repair(Epoch last) {
  if (failure_ && failure_->known_in <= last) failure_.reset();
}

void OperationQueue::repair_loss(Slot slot, Epoch came_in) {
  if (!failure_) return;
  if (failure_->error) return repair(came_in);
  std::erase_if(failure_->lost, [&](const auto& entry) {
    return identity_.slots[entry.first] == slot && entry.second <= came_in;
  });
  if (failure_->lost.empty()) failure_.reset();
}

void OperationQueue::fail(const std::exception_ptr& why) {
  failed_ = why;
  over_ = stage_ != GroupStage::open;
  open_frame_protocol();
  unusable_ = true;
  if (phase_ != Phase::idle) take_back();
  while (!queue_.empty()) finish_head(why);
}

WaitFacts OperationQueue::facts_of_expiry(Instant now) {
  const Operation& operation = *queue_.front();
  WaitFacts facts = {.rank = identity_.self,
                     .phase = title(operation),
                     .expected = committed_ + 1,
                     .seen = committed_,
                     .waited_s = std::chrono::duration<double>(now - operation.called).count()};
  if (phase_ == Phase::awaiting_ranks) {
    facts.phase += ": no process has taken the lost ranks' slots";
    return facts;
  }
  const bool talking = phase_ == Phase::running || phase_ == Phase::committing;
  const std::vector<uint32_t> absent =
      talking ? talk_->absent(attempt_->team.ranks) : std::vector<uint32_t>{};
  // Another rank's deadline may have frozen this one just before its own passed. The ranks that
  // have not come are known all the same.
  if (absent.empty() && (!talking || context_.frozen)) {
    facts.phase += ": the ranks have not agreed on the members";
    return facts;
  }
  if (!absent.empty()) {
    facts.rank = absent[0];
    facts.seen = talk_->heard(absent[0]);
    facts.phase += have_not_begun(absent);
    for (const uint32_t rank : absent) report_timeout(rank);
    return facts;
  }
  const Wait* wait = run_.waiting_for();
  if (wait == nullptr) return facts;
  facts.phase += ": waits for " + wait->describe();
  if (const std::optional<uint32_t> rank = wait->awaited()) {
    facts.rank = *rank;
    facts.seen = talk_->heard(*rank);
    report_timeout(*rank);
  }
  return facts;
}

void OperationQueue::report_timeout(uint32_t rank) const {
  // The others may have closed a group that this process has entered but never used.
  if (identity_.label != 0 && committed_ > 0 && last_committed_.empty()) return;
  context_.control->report_timeout(
      {.slot = identity_.slots[rank], .group = identity_.id, .sequence = committed_ + 1},
      context_.view.epoch);
}

void OperationQueue::expire(Instant now) {
  expired_ = facts_of_expiry(now);
  gives_up_ = now + connection_timer;
  if (context_.quorum_missing || phase_ == Phase::awaiting_ranks || phase_ == Phase::idle)
    give_up(now);
}

void OperationQueue::give_up(Instant now) {
  const WaitFacts facts = *expired_;
  open_frame_protocol();
  if (phase_ != Phase::idle) take_back();
  unusable_ = true;
  if (context_.quorum_missing) {
    const QuorumFacts& quorum = *context_.quorum_missing;
    break_with(std::make_exception_ptr(QuorumLost(quorum.answering, quorum.needed)),
               "too few ranks answered", now);
  } else {
    break_with(std::make_exception_ptr(PeerTimeout(facts)), why_expired(facts), now);
  }
}

void OperationQueue::install(const Verdict& verdict, const GroupProgress* published, Instant now) {
  open_frame_protocol();
  attempt_.reset();
  if (failed_) return;
  const Sequence committed = published != nullptr ? published->committed : committed_;
  const std::vector<uint32_t> lost = identity_.ranks_of(verdict.lost);

  if (committed > committed_) {
    // A rank has left the commit round of this operation, so all its data are here.
    if (phase_ == Phase::committing && committed == committed_ + 1) {
      if (context_.mutant != EngineMutant::verdict_not_followed) commit();
    } else if (phase_ == Phase::refusing && committed == committed_ + 1) {
      finish_refusal();
    } else if (phase_ == Phase::idle && queue_.empty()) {
      committed_ = committed;  // a newcomer, or it gave up before the others agreed
      last_committed_ = team_members_;
    } else {
      throw InternalError(fmt::format("a verdict commits operation {} of group \"{}\" out of order",
                                      committed, identity_.name));
    }
  }
  if (end_parting(published)) return;
  const bool under_way = phase_ != Phase::idle && phase_ != Phase::awaiting_ranks;
  if (under_way && phase_ == Phase::refusing) {
    finish_refusal();  // a rank that does not know of the refusal hears of it next
  } else if (under_way) {
    ++context_.counters.aborted;
    take_back();
  }
  if (verdict.recovers && !queue_.empty()) {
    // An operation called before all put failures behind them starts anew, with its full time.
    expired_.reset();
    queue_.front()->deadline = now + queue_.front()->timeout;
    if (!lost.empty() || phase_ == Phase::awaiting_ranks) phase_ = Phase::idle;
  } else if (!lost.empty()) {
    call_off(verdict, lost, now);
  } else if (expired_) {
    WaitFacts facts = *expired_;
    // This rank may have missed announcements; the verdict names the ranks that had not begun.
    const std::vector<uint32_t> late = identity_.ranks_of(verdict.stalled);
    if (!late.empty() && facts.rank != late[0]) {
      facts.rank = late[0];
      facts.phase = title(*queue_.front()) + have_not_begun(late);
    }
    publish_failure(facts);
    break_with(std::make_exception_ptr(PeerTimeout(facts)), why_expired(facts), now);
  } else if (phase_ == Phase::awaiting_ranks &&
             identity_.active_ranks(verdict.next).size() == identity_.slots.size()) {
    run_again(now);
  } else if (!queue_.empty()) {
    queue_.front()->deadline = std::max(queue_.front()->deadline, now + second_chance);
  }
  if (verdict.recovers && context_.mutant != EngineMutant::recovering_ignored)
    repair(verdict.next.epoch);
}

void OperationQueue::publish_failure(const WaitFacts& facts) {
  prepare_attempt();
  talk_->begin(committed_ + 1, queue_.front()->call.signature);
  talk_->post_breakage(attempt_->team.ranks, Breakage::of(facts));
  unusable_ = true;  // nothing may follow the breakage
}

void OperationQueue::call_off(const Verdict& verdict, const std::vector<uint32_t>& lost,
                              Instant now) {
  const bool back =
      lost.size() > 0 && identity_.active_ranks(verdict.next).size() == identity_.slots.size();
  expired_.reset();
  switch (context_.on_failure) {
    case OnFailure::raise:
      break_for(lost, now);
      break;
    case OnFailure::exclude:
      if (!queue_.empty()) run_again(now);
      break;
    case OnFailure::retry:
      if (queue_.empty()) break;
      // Another lost rank, for which the operation has waited, may be back.
      if (back)
        run_again(now);
      else
        phase_ = Phase::awaiting_ranks;
      break;
  }
}

/// Restarts the operation with its full time: the lost rank may have used up what was left, and
/// then the next rank to be a moment late would be blamed.
void OperationQueue::run_again(Instant now) {
  phase_ = Phase::idle;
  queue_.front()->deadline = now + queue_.front()->timeout;
  ++context_.counters.retried;
}

}  // namespace tokenyard::collectives
