/// The operations of one group, run one after another in the order of their calls.
///
///     queued -> running -> committing -> done
///                  |  ^        |
///                  |  |        +-- the verdict says that it is done: done
///                  |  +-- runs again in the next epoch: no rank of this group was lost, or the
///                  |      policy says so
///                  +-> refusing -> failed: ranks have made different calls
///                  +-> expired  -> failed, or runs again without the ranks that did not come
///
/// An operation moves its data (running), then enters the commit round (committing). A rank leaves
/// the round only when all have entered it (call.hpp). A closed queue parts from the other ranks'
/// queues after its last operation (parting.cpp).
///
/// Invariant: while a rank is running an operation, no rank has committed it, for commits need its
/// entry into the round. While a rank is committing, its data are complete, but it cannot know
/// whether others have left the round; if the epoch ends, only the verdict can tell.
///
/// Invariant: after a failure that leaves frames half sent, nothing more is sent in that epoch.
///
/// Invariant: a failure belongs to the epoch in which it became known, and is reported in no other.
/// So a failure that all ranks have agreed to forget (`repair`) cannot come back from a late rank.
#pragma once

#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <optional>

#include "collectives/engine/call.hpp"
#include "collectives/engine/engine_context.hpp"

namespace tokenyard::collectives {

class Operation : public Outcome {
 public:
  Operation(Call call, std::chrono::nanoseconds timeout, Instant called)
      : call(std::move(call)), timeout(timeout), called(called), deadline(called + timeout) {}
  std::string choice() const override;
  std::vector<uint32_t> missing_ranks() const override { return missing; }
  /// Returns the call with one part per rank of the group.
  const Call& placed_call() const { return placed ? *placed : call; }

  const Call call;
  const std::chrono::nanoseconds timeout;
  const Instant called;
  Instant deadline;
  /// Of the last attempt. Written before the operation is done, read afterwards.
  Choice chosen;
  Shape shape;
  std::optional<Call> placed = {};     ///< if the call lists active ranks only
  std::vector<uint32_t> missing = {};  ///< ranks of the group that took no part
};

class OperationQueue {
 public:
  OperationQueue(EngineContext& engine_context, GroupIdentity identity, Sequence committed);

  const GroupIdentity& identity() const { return identity_; }
  Sequence committed() const { return committed_; }
  /// Returns the operation under way, else the last one done.
  Sequence begun() const { return committed_ + (queue_.empty() ? 0 : 1); }
  /// Returns whether there is nothing to do.
  bool idle(Instant now) const;
  /// Returns whether the group has failed and needs `repair`.
  bool broken() const { return failure_.has_value(); }
  /// Returns whether the group has failed and some of its ranks may not know.
  bool stopped() const { return failure_ && failure_->error; }

  void add(std::shared_ptr<Operation> operation);
  /// Accepts no more operations. Those accepted before go on.
  void close(Instant now);
  GroupStage stage() const { return stage_; }
  /// Returns whether all ranks concerned have closed the group and know that all have.
  bool over() const { return over_; }
  /// Changes the id: a group that is being founded gets a new id in each epoch until it is
  /// complete.
  void rename(GroupId id) { identity_.id = id; }
  /// Returns whether anything moved.
  bool poll(Instant now);
  /// Returns the latest time at which to call `poll` if nothing arrives.
  std::optional<Instant> next_deadline() const;

  /// Adds ranks up to `slots`: every slot is a rank of the world's group, which grows with the job.
  void extend(uint32_t slots);
  std::string choice(OperationKind kind, size_t bytes) const;
  /// Begins the epoch of `verdict`. `published`: the verdict's entry for this group, or null.
  void install(const Verdict& verdict, const GroupProgress* published, Instant now);
  /// Forgets a failure that was known in epoch `last` or before.
  void repair(Epoch last);
  /// Forgets the losses of the slot's former processes. `came_in`: epoch of its present process.
  void repair_loss(Slot slot, Epoch came_in);
  /// Fails everything, now and later.
  void fail(const std::exception_ptr& why);

  uint64_t bytes_sent() const;

 private:
  /// Why operations fail until `repair`: an error, or (without `error`) lost ranks.
  struct Failure {
    Epoch known_in = 0;
    std::exception_ptr error;
    std::map<uint32_t, Epoch> lost = {};  ///< by rank: epoch in which its loss became known
    Instant at{};
    std::string why;
  };
  enum class Phase { idle, running, committing, refusing, awaiting_ranks, parting };

  void begin(Instant now);
  Team team_of_hosts(std::vector<uint32_t>& host_of) const;
  void prepare_attempt();
  Task operate();
  void advance();
  void commit();
  void settle_results(Operation& operation);
  void place_parts(Operation& operation);
  std::string unplaced_parts() const;
  void begin_parting(Instant now);
  Task part();
  bool end_parting(const GroupProgress* published);
  void refuse(const Refusal& refusal);
  void finish_refusal();
  void fail_locally(std::exception_ptr error, Instant now);
  void break_by_peer(const WaitFacts& facts, Instant now);
  void finish_head(std::exception_ptr error);
  /// Fails all operations, and those that come until `repair`.
  void break_with(const std::exception_ptr& error, std::string why, Instant now);
  void break_for(const std::vector<uint32_t>& lost, Instant now);
  /// Returns the error of an operation aborted because ranks were lost, or called after that.
  std::exception_ptr aborted(const Operation& operation, Sequence sequence) const;
  /// Returns the error of an operation that had not begun when the group stopped.
  std::exception_ptr refused(const Operation& operation, Sequence sequence) const;
  std::string why_expired(const WaitFacts& facts) const;
  void take_back();
  void call_off(const Verdict& verdict, const std::vector<uint32_t>& lost, Instant now);
  void run_again(Instant now);
  void publish_failure(const WaitFacts& facts);
  void poll_clock(Instant now);
  Instant speaks_at() const;
  Instant judged_at() const;
  void expire(Instant now);
  void give_up(Instant now);
  WaitFacts facts_of_expiry(Instant now);
  void report_timeout(uint32_t rank) const;
  std::string title(const Operation& operation) const;
  std::string title(const Operation& operation, Sequence sequence) const;
  void open_frame_protocol();

  EngineContext& context_;
  GroupIdentity identity_;
  Sequence committed_;
  std::deque<std::shared_ptr<Operation>> queue_;

  Phase phase_ = Phase::idle;
  std::optional<FrameProtocol> talk_;
  Undo undo_;
  std::optional<Attempt> attempt_;
  std::optional<Attempt> parting_;
  GroupStage stage_ = GroupStage::open;
  bool over_ = false;
  Instant attentive_until_{};           // looks at the other ranks' parting until then
  std::vector<Member> team_members_;    // members in this epoch's attempts
  std::vector<Member> last_committed_;  // members that took part in the last operation done
  Run run_;
  Refusal refusal_;
  Instant began_{};
  bool here_said_ = false;
  bool lacks_ranks_ = false;  // announced itself, but has not heard of all others yet
  Instant complete_since_{};  // when it had heard of all; never: zero
  std::optional<WaitFacts> expired_;
  Instant gives_up_{};

  std::exception_ptr failed_;       // permanent
  std::optional<Failure> failure_;  // until `repair`
  bool unusable_ = false;
  uint64_t bytes_sent_before_ = 0;
};

}  // namespace tokenyard::collectives
