/// A group's operations, one after the other in the order of their calls.
///
///     queued -> running -> committing -> done
///                  |  ^        |
///                  |  |        +-- the verdict says that it is done: done
///                  |  +-- run again in the next epoch: ranks were lost and the policy says so, or
///                  |      none of this group was lost
///                  +-> refusing -> failed: ranks have called different things
///                  +-> expired  -> failed, or run again without those who did not come
///
/// A queue that its rank has closed says so once all its operations have ended (parting.cpp).
///
/// Invariant: a rank in `running` has not committed, nor has anybody else; one in `committing` has
/// all its data, and cannot know whether others have left the round: only the verdict can say.
/// Invariant: after a failure that leaves frames half said, nothing more is said in that epoch.
/// Invariant: a failure is known in one epoch, and told in no other. So what a `repair` that all
/// ranks have agreed on has forgotten does not come back from a rank that is late.
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
  /// The call with a place for each rank of the group.
  const Call& placed_call() const { return placed ? *placed : call; }

  const Call call;
  const std::chrono::nanoseconds timeout;
  const Instant called;
  Instant deadline;
  /// Of the last attempt. Written before the operation is done, read after.
  Choice chosen;
  Shape shape;
  std::optional<Call> placed = {};     ///< where the call counts only those who are there
  std::vector<uint32_t> missing = {};  ///< ranks of the group that took no part in what is done
};

class OperationQueue {
 public:
  OperationQueue(EngineContext& engine_context, GroupIdentity identity, Sequence committed);

  const GroupIdentity& identity() const { return identity_; }
  Sequence committed() const { return committed_; }
  /// The operation that is under way; else the last that is done.
  Sequence begun() const { return committed_ + (queue_.empty() ? 0 : 1); }
  /// Has nothing to do.
  bool idle(Instant now) const;
  /// Has failed and wants `repair`.
  bool broken() const { return failure_.has_value(); }
  /// Has failed, and not every rank of it may know.
  bool stopped() const { return failure_ && failure_->error; }

  void add(std::shared_ptr<Operation> operation);
  /// No operation is added from now on. Those that were go on.
  void close(Instant now);
  GroupStage stage() const { return stage_; }
  /// All ranks that have to do with the group have closed it, and know that.
  bool over() const { return over_; }
  /// A group that is being founded is another one in each epoch, until all its ranks are there.
  void rename(GroupId id) { identity_.id = id; }
  /// True if something moved.
  bool poll(Instant now);
  /// When `poll` wants to be called at the latest, though nothing arrives.
  std::optional<Instant> next_deadline() const;

  /// The world grows with its job: every slot is a rank of it.
  void extend(uint32_t slots);
  std::string choice(OperationKind kind, size_t bytes) const;
  /// `published`: what the verdict says of this group; null: nothing.
  void install(const Verdict& verdict, const GroupProgress* published, Instant now);
  /// Forgets a failure that was known in epoch `last` or before.
  void repair(Epoch last);
  /// Forgets the loss of the slot's former processes. `came_in`: the epoch of its present one.
  void repair_loss(Slot slot, Epoch came_in);
  /// Everything, now and later.
  void fail(const std::exception_ptr& why);

  uint64_t bytes_sent() const;

 private:
  /// Why operations fail until `repair`: something went wrong, or (no error) ranks were lost.
  struct Failure {
    Epoch known_in = 0;
    std::exception_ptr error;
    std::map<uint32_t, Epoch> lost = {};  ///< ranks, and the epoch in which that was known
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
  /// Fails all there is, and what comes until `repair`.
  void break_with(const std::exception_ptr& error, std::string why, Instant now);
  void break_for(const std::vector<uint32_t>& lost, Instant now);
  /// Ranks were lost: what an operation is told that was called before, or comes after.
  std::exception_ptr aborted(const Operation& operation, Sequence sequence) const;
  /// What an operation is told that has not begun when the group has stopped.
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
  Instant attentive_until_{};           // to the other ranks' closing
  std::vector<Member> team_members_;    // of this epoch's attempts
  std::vector<Member> last_committed_;  // who took part in the last operation that is done
  Run run_;
  Refusal refusal_;
  Instant began_{};
  bool here_said_ = false;
  bool lacks_ranks_ = false;  // has said that it is here, and not heard all the others
  Instant complete_since_{};  // when it had, or never
  std::optional<WaitFacts> expired_;
  Instant gives_up_{};

  std::exception_ptr failed_;       // for good
  std::optional<Failure> failure_;  // until `repair`
  bool unusable_ = false;
  uint64_t bytes_sent_before_ = 0;
};

}  // namespace tokenyard::collectives
