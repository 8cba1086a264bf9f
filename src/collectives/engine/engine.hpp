/// Runs the operations of all groups of a process, without threads and clocks of its own: whoever
/// waits polls it, and the control plane tells it who is there.
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

/// A group in the making: done when all its ranks are there.
struct Founding {
  /// Null if the others made the group before this process came.
  std::shared_ptr<Operation> barrier;
  GroupId id = 0;        ///< under the engine's lock until the barrier is done
  bool awaited = false;  ///< somebody waits for it
};

class Engine final : public control::Participant {
 public:
  using Clock = std::function<Instant()>;
  Engine(std::shared_ptr<Transport> transport, EngineOptions options, Clock clock);

  /// Before the first operation. Borrowed: must outlive all use of the engine.
  void use(control::MembershipControl& control);
  /// Called without the lock when there may be something to do that no peer will ring for, and
  /// something to `announce`. The control plane's thread runs no caller's code.
  void on_news(std::function<void()> call) { on_news_ = std::move(call); }

  /// Adds a group whose number its ranks know. Throws InvalidArgument if there is one of it. True:
  /// operations of it have been done already, before this process came.
  bool add_group(const GroupIdentity& identity);
  GroupIdentity identity(GroupId group) const;

  /// Makes a group of a name and slots together with its other ranks, or enters one that they have
  /// made before this process came (engine_groups.cpp). Throws InvalidArgument if one of this name
  /// and slots is open here. Ends with `end_founding`, whatever became of it.
  std::shared_ptr<Founding> found_group(GroupIdentity identity, std::chrono::nanoseconds timeout);
  void end_founding(const std::shared_ptr<Founding>& founding);
  /// No more calls of this group. What is under way goes on; once all its ranks have closed it, it
  /// is forgotten, and what it used given back.
  void close_group(GroupId group);
  /// Some group is closed here and not yet by all its ranks.
  bool closing() const;
  /// How many groups there are, those included that are being closed.
  size_t groups() const;

  std::shared_ptr<Operation> start(GroupId group, Call call, std::chrono::nanoseconds timeout);

  std::shared_ptr<Outcome> send(GroupId group, ConstArray array, uint32_t to, uint64_t tag,
                                std::chrono::nanoseconds timeout);
  std::shared_ptr<Outcome> receive(GroupId group, Array array, std::optional<uint32_t> from,
                                   uint64_t tag, std::chrono::nanoseconds timeout);

  /// Lets everything go on that can. `with_transport`: looks at sockets and bells, too.
  bool poll(bool with_transport);
  /// Lets peers ring from now on, and looks once more. True if something moved.
  bool prepare_to_sleep();
  bool busy() const;
  std::optional<Instant> next_deadline() const;
  Instant now() const { return clock_(); }

  View view() const;
  bool frozen() const;
  /// Groups that have failed work again, if that was known in epoch `last` or before.
  void repair(Epoch last);
  /// Forgets the loss of the slot's former processes, of which the present one has taken the place.
  void repair_loss(Slot slot);
  /// Some group has failed and not been repaired.
  bool failed() const;
  /// Some group has failed in a way that not all its ranks may know of.
  bool stopped() const;
  /// The last epoch that has mended all groups; epoch 0: none.
  View recovered() const;
  /// A process holds the slot, and another one has lost it since this one came; nothing is frozen.
  bool refilled(Slot slot) const;
  /// Some process has held the slot.
  bool was_filled(Slot slot) const;
  /// The epoch in which the slot's last process came.
  Epoch came_in(Slot slot) const;
  /// How many slots there were before this process came, its own counted.
  uint32_t slots_found() const;
  void cancel(const std::exception_ptr& why);
  /// Tells of operations that the control plane has ended.
  void announce();
  /// Refuses all calls from now on, and fails what is under way but for messages that have been
  /// sent: what it returns is done when all of those have been received.
  std::shared_ptr<Outcome> begin_to_leave(const std::exception_ptr& why);
  /// A rank (of the world) that has not received what was sent to it.
  std::optional<Slot> unreceived_by() const;
  /// After `cancel`: lets go of the transport. Everything fails from now on.
  void close();
  /// Ranks on this process's host, itself among them.
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
  /// Throws InvalidArgument if it is closed.
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
  std::map<GroupId, GroupProgress> published_;               // by the last verdict
  std::map<uint64_t, std::shared_ptr<Founding>> foundings_;  // by label
  std::set<GroupId> closing_;
  View recovered_;
  std::map<Slot, Epoch> came_in_;
  std::set<Slot> lost_before_;  // slots that a process has lost since this one came
  uint32_t slots_found_ = 0;
  Instant attentive_until_{}, asked_again_until_{};
  std::exception_ptr leaving_;
  std::shared_ptr<Outcome> farewell_;  // not done until all messages have been received
  std::exception_ptr ended_;
};

}  // namespace tokenyard::collectives
