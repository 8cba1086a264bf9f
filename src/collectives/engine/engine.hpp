/// Runs the operations of all groups of a process. Has no threads and no clock of its own: callers
/// that wait poll it, and the control plane tells it who the members are.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "collectives/engine/operation_queue.hpp"
#include "collectives/engine/patient_mutex.hpp"
#include "collectives/engine/point_to_point.hpp"
#include "collectives/interfaces/array.hpp"

namespace tokenyard::collectives {

struct EngineOptions {
  Slot self = 0;
  OnFailure on_failure = OnFailure::raise;
  Places places = Places::kept;
  size_t chunk_bytes = size_t{128} << 10;
  EngineMutant mutant = EngineMutant::none;
};

/// A group that is being founded; complete once all its ranks take part.
struct Founding {
  /// Null if the others founded the group before this process came.
  std::shared_ptr<Operation> barrier;
  GroupId id = 0;        ///< under the engine's lock until the barrier is done
  bool awaited = false;  ///< a caller waits for it
};

class Engine final : public control::Participant {
 public:
  using Clock = std::function<Instant()>;
  Engine(std::shared_ptr<Transport> transport, EngineOptions options, Clock clock);

  /// Sets the control plane, before the first operation. Borrowed: must outlive all use of the
  /// engine.
  void use(control::MembershipControl& control);
  /// `call` is called, without the lock, when there may be work that no peer rings for, or an
  /// outcome to `announce`. It runs on the control plane's thread, which must run no caller's code.
  void on_news(std::function<void()> call) { on_news_ = std::move(call); }

  /// Adds a group whose id its ranks know already. Throws InvalidArgument if it exists. Returns
  /// whether operations of it were done before this process came.
  bool add_group(const GroupIdentity& identity);
  GroupIdentity identity(GroupId group) const;

  /// Founds a group of this name and these slots together with its other ranks, or enters one that
  /// they founded before this process came (engine_groups.cpp). Throws InvalidArgument if a group
  /// of this name and these slots is open here. The caller must call `end_founding`, however this
  /// ends.
  std::shared_ptr<Founding> found_group(GroupIdentity identity, std::chrono::nanoseconds timeout);
  void end_founding(const std::shared_ptr<Founding>& founding);
  /// Ends calls of this group. Operations under way go on; once all its ranks have closed the
  /// group, it is forgotten and its resources are released.
  void close_group(GroupId group);
  /// Returns whether some group is closed here but not yet by all its ranks.
  bool closing() const;
  /// Returns the number of groups, including those being closed.
  size_t groups() const;

  std::shared_ptr<Operation> start(GroupId group, Call call, std::chrono::nanoseconds timeout);

  /// `eager_limit`: as JobOptions::eager_limit.
  std::shared_ptr<Outcome> send(GroupId group, ConstArray array, uint32_t to, uint64_t tag,
                                std::chrono::nanoseconds timeout,
                                size_t eager_limit = eager_limit_max);
  std::shared_ptr<Outcome> receive(GroupId group, Array array, std::optional<uint32_t> from,
                                   uint64_t tag, std::chrono::nanoseconds timeout);

  /// Advances everything that can go on. `with_transport`: looks at sockets and doorbells too.
  /// Returns whether anything moved.
  bool poll(bool with_transport);
  /// Makes peers ring from now on, and looks once more. Returns whether anything moved.
  bool prepare_to_sleep();
  bool busy() const;
  std::optional<Instant> next_deadline() const;
  Instant now() const { return clock_(); }

  View view() const;
  bool frozen() const;
  /// Makes failed groups work again if their failure was known in epoch `last` or before.
  void repair(Epoch last);
  /// Forgets the losses of the slot's former processes, which its present process has replaced.
  void repair_loss(Slot slot);
  /// Returns whether some group has failed and is not repaired.
  bool failed() const;
  /// Returns whether some group has failed in a way that some of its ranks may not know.
  bool stopped() const;
  /// Returns the last epoch in which all groups recovered; epoch 0: none.
  View recovered() const;
  /// Returns whether a process holds a slot that was lost since this process came.
  bool refilled(Slot slot) const;
  /// Returns whether any process has held the slot.
  bool was_filled(Slot slot) const;
  /// Returns the epoch in which the slot's last process came.
  Epoch came_in(Slot slot) const;
  /// Returns the number of slots when this process came, its own included.
  uint32_t slots_found() const;
  void cancel(const std::exception_ptr& why);
  /// Announces the operations that the control plane has ended.
  void announce();
  /// Rejects new calls and fails everything under way except messages already sent. The result is
  /// done once all of those have been received.
  std::shared_ptr<Outcome> begin_to_leave(const std::exception_ptr& why);
  /// Returns a rank (of the world) that has not received a message sent to it.
  std::optional<Slot> unreceived_by() const;
  /// Releases the transport; everything fails from now on. Only after `cancel`.
  void close();
  /// Returns the number of ranks on this process's host, including this one.
  uint32_t neighbours() const;
  std::exception_ptr ended() const;
  std::optional<QuorumFacts> missing_quorum() const;
  CollectivesCounters counters() const;
  std::string choice(GroupId group, OperationKind kind, size_t bytes) const;

  std::vector<GroupProgress> freeze(Epoch epoch) override;
  void install(const Verdict& verdict, const Contacts& contacts) override;
  void fenced(Epoch epoch, const std::string& why) override;
  void quorum_missing(const std::vector<Slot>& answering, uint32_t needed) override;
  void attend() override;

 private:
  class Turn;
  bool poll_queues();
  void note_places(const Verdict& verdict);
  PointToPoint::Attention attention() const;
  void poll_farewell();
  /// Returns the group's queue. Throws InvalidArgument if the group is closed.
  OperationQueue& queue(GroupId group);
  const OperationQueue& queue(GroupId group) const;
  void insert_group(const GroupIdentity& identity, Sequence committed);
  GroupId founding_id(uint64_t label) const;
  void rename_foundings();
  void forget_groups();

  const Clock clock_;
  std::shared_ptr<Transport> transport_;  // null once closed
  std::function<void()> on_news_ = [] {};

  mutable PatientMutex mutex_;
  EngineContext context_;
  std::map<GroupId, OperationQueue> queues_;
  std::map<GroupId, PointToPoint> messages_;
  std::map<GroupId, GroupProgress> published_;               // progress by the last verdict
  std::map<uint64_t, std::shared_ptr<Founding>> foundings_;  // by label
  std::set<GroupId> closing_;
  View recovered_;
  std::map<Slot, Epoch> came_in_;
  std::set<Slot> lost_before_;  // slots lost since this process came
  uint32_t slots_found_ = 0;
  Instant attentive_until_{}, asked_again_until_{};
  std::exception_ptr leaving_;
  std::shared_ptr<Outcome> farewell_;  // done once all messages have been received
  std::exception_ptr ended_;
};

}  // namespace tokenyard::collectives
