/// The real engine and its algorithms in a simulated process, with a program that calls operations
/// of every kind, repeats aborted ones, and puts failures behind it together with the others.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "collectives/engine/engine.hpp"
#include "collectives/simulated/drawn_call.hpp"
#include "collectives/simulated/letters.hpp"
#include "collectives/simulated/program.hpp"
#include "collectives/simulated/recovery_calls.hpp"
#include "collectives/simulated/reunions.hpp"
#include "collectives/simulated/simulated_transport.hpp"
#include "membership/invariant.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard::collectives::simulated {

/// Deliberate bugs around the engine.
enum class ProgramMutant : uint8_t {
  none,
  stale_bytes_accepted,  ///< by the transport
  shrinks_alone,         ///< puts failures behind it without the others
};

class EngineProgram final : public Program {
 public:
  struct Options {
    Sequence target = 0;
    uint32_t ranks = 0;  ///< at the start; the engine's world grows by itself
    OnFailure on_failure = OnFailure::exclude;
    Instant timeout = std::chrono::hours(1);
    bool rooted = false;  ///< lost ranks are not replaced, or all ranks wait for their replacements
    LetterChecker* letters = nullptr;      ///< watches the messages; if null, none are sent
    size_t eager_limit = eager_limit_max;  ///< of its messages
    bool reunions = false;  ///< a group is made and closed over and over beside the operations
    RecoveryCalls::Options recovery = {};
    Sequence grow_at = 0;  ///< after so many operations of the world, a founder grows the job twice
    uint32_t slots_max = 0;
    EngineMutant engine_mutant = EngineMutant::none;
    ProgramMutant mutant = ProgramMutant::none;
  };
  struct Outside {
    SimulatedTransport::Post post;
    Engine::Clock clock;
    std::function<void(const TimeoutReport&, Epoch)> report_timeout;
    std::function<void(const std::vector<Slot>&, Epoch)> admit;
    std::function<void(const std::vector<Slot>&)> withdraw;
    std::function<void(const Member&)> evict;
    std::function<void(bool)> recover;
    std::function<void(GroupId)> failed;  ///< the program tries again soon
    std::function<void()> drive_soon;
    std::function<void(Instant)> drive_at;
  };

  EngineProgram(Member self, Options options, Watcher watcher, Outside outside)
      : self_(self),
        options_(options),
        watcher_(std::move(watcher)),
        outside_(std::move(outside)),
        transport_(std::make_shared<SimulatedTransport>(
            outside_.post, options.mutant == ProgramMutant::stale_bytes_accepted)),
        engine_(transport_,
                {.self = self.slot,
                 .on_failure = options.on_failure,
                 .chunk_bytes = 256,
                 .mutant = options.engine_mutant},
                outside_.clock),
        control_(outside_),
        calls_(engine_, control_, options.recovery, outside_.clock, outside_.drive_at) {
    engine_.use(control_);
    if (options.letters != nullptr)
      letters_.emplace(self, engine_, *options.letters, options.timeout, options.eager_limit);
    if (options.reunions) reunions_.emplace(self.slot, engine_, options.ranks);
  }

  ~EngineProgram() override { control_.closed = true; }

  void arrive(Slot from, Parcel parcel) {
    transport_->arrive(from, std::move(parcel));
    drive();
  }
  /// Polls until nothing moves.
  void drive() {
    do {
      for (int round = 0; engine_.poll(true); ++round)
        membership::invariant(round < 100'000, "the engine is busy without end");
      settle();
    } while (reunions_ && view_.epoch > 0 && !over_ && !engine_.frozen() &&
             reunions_->settle(groups_.at(0).committed));
    if (!over_ && view_.epoch > 0 && calls_.advance()) {
      // No operation may report losses from now on that happened meanwhile.
      if (is_finished() && engine_.failed()) put_failures_behind();
      for (const auto& [id, group] : groups_) outside_.failed(id);
    }
    const std::optional<Instant> next = engine_.next_deadline();
    if (next && next != planned_) outside_.drive_at(*next);
    planned_ = next;
  }

  void add_group(GroupId id, std::vector<Slot> slots) override {
    if (id == 0 && view_.epoch == 0 && channels_of_.epoch == 0) slots.resize(options_.ranks);
    const auto place = std::find(slots.begin(), slots.end(), self_.slot);
    if (place == slots.end() || groups_.contains(id)) return;
    engine_.add_group({.id = id,
                       .name = std::to_string(id),
                       .slots = slots,
                       .self = static_cast<uint32_t>(place - slots.begin())});
    groups_[id].slots = std::move(slots);
  }

  bool begin(GroupId id) override {
    Group& group = groups_.at(id);
    if (view_.epoch == 0 || group.operation || group.committed >= options_.target || over_ ||
        engine_.frozen() || calls_.active())
      return false;
    if (grows(id)) {
      calls_.grow_twice(options_.slots_max);
      return false;
    }
    group.begun = group.committed + 1;
    const auto place = std::find(group.slots.begin(), group.slots.end(), self_.slot);
    group.call.emplace(DrawnCall::Place{.self = self_,
                                        .rank = static_cast<uint32_t>(place - group.slots.begin()),
                                        .slots = group.slots,
                                        .group = id,
                                        .sequence = group.begun,
                                        .rooted = options_.rooted},
                       options_.on_failure == OnFailure::retry ? all_of(group.slots) : view_);
    group.called = outside_.clock();
    group.called_after = recovered_;
    group.operation = engine_.start(id, group.call->call(), options_.timeout);
    if (letters_ && id == 0) letters_->write(view_);
    drive();
    return true;
  }
  /// Hears from elsewhere that an operation has failed.
  void hear_of_failure() override {
    const bool waits = std::any_of(groups_.begin(), groups_.end(),
                                   [](const auto& entry) { return entry.second.operation; });
    if (!waits && !over_ && view_.epoch > 0) put_failures_behind();
  }
  std::vector<Slot> waiting_for(GroupId, Sequence) const override { return {}; }

  // ---- Participant ------------------------------------------------------------------------------

  std::vector<GroupProgress> freeze(Epoch epoch) override { return engine_.freeze(epoch); }
  void install(const Verdict& verdict, const Contacts& contacts) override {
    const bool newcomer = view_.epoch == 0;
    if (newcomer) came_in_ = verdict.next.epoch;
    channels_of_ = verdict.next;
    engine_.install(verdict, contacts);
    if (newcomer) calls_.begin(self_.slot);
    if (newcomer) {
      add_group(0, world_of(verdict.next));
      for (const GroupProgress& published : verdict.groups) {
        std::vector<Slot> slots = published.slots;
        add_group(published.group, std::move(slots));
        if (groups_.contains(published.group))
          groups_[published.group].committed = published.committed;
      }
    }
    for (const GroupProgress& published : verdict.groups) {
      const auto found = groups_.find(published.group);
      if (found == groups_.end()) continue;
      settle(found->first, found->second, published.committed);
      Group& group = found->second;
      if (std::exchange(group.unsure, false) && published.committed == group.committed + 1)
        watcher_.missed(published.group, group.committed = published.committed);
    }
    view_ = verdict.next;
    groups_.at(0).slots = world_of(view_);
    if (verdict.recovers) {
      recovered_ = view_.epoch;
      begin_anew();
    } else if (!newcomer && (is_finished() || (raises() && !verdict.lost.empty()))) {
      put_failures_behind(verdict.lost);  // a program that listens to membership changes
    }
    outside_.drive_soon();
  }
  void fenced(Epoch epoch, const std::string& why) override {
    over_ = true;
    engine_.fenced(epoch, why);
    for (const auto& [id, group] : groups_) {
      const bool ended = !group.operation || group.operation->done();
      membership::invariant(
          ended && (!group.call || !group.operation || group.call->touched() == 0),
          "who is out has failed, with its inputs untouched");
    }
  }
  void quorum_missing(const std::vector<Slot>& answering, uint32_t needed) override {
    engine_.quorum_missing(answering, needed);
  }

  std::vector<GroupProgress> progress() const override { return progress_of(groups_); }
  Sequence begun(GroupId id) const override { return groups_.at(id).begun; }
  bool running(GroupId id) const override { return groups_.at(id).operation != nullptr; }
  const View& view() const override { return view_; }
  /// The view whose members its channels lead to.
  const View& channels_of() const { return channels_of_; }
  bool frozen() const override { return engine_.frozen(); }
  bool misses_quorum() const override { return engine_.missing_quorum().has_value(); }
  std::string unfinished() const override {
    if (!reunions_ || over_) return "";
    if (reunions_->held() < groups_.at(0).committed)
      return fmt::format("has held {} reunions", reunions_->held());
    return engine_.groups() > groups_.size() ? "keeps a group that it has closed" : "";
  }
  RecoveryCalls& calls() { return calls_; }

 private:
  struct Group {
    std::vector<Slot> slots;
    Sequence committed = 0, begun = 0;
    std::optional<DrawnCall> call;  // the engine uses its memory
    Instant called{};
    Epoch called_after = 0;  // last recovering epoch before it was called or restarted
    bool unsure = false;     // it gave up without agreement with the others
    std::shared_ptr<Operation> operation;
  };
  struct Control final : control::MembershipControl {
    explicit Control(const Outside& outside) : outside(outside) {}
    void report_timeout(const TimeoutReport& timeout_report, Epoch seen_in) override {
      outside.report_timeout(timeout_report, seen_in);
    }
    void admit(const std::vector<Slot>& slots, Epoch seen_in) override {
      outside.admit(slots, seen_in);
    }
    void withdraw(const std::vector<Slot>& slots) override {
      if (!closed) outside.withdraw(slots);
    }
    void evict(const Member& member) override { outside.evict(member); }
    void recover(bool wanted) override {
      if (!closed) outside.recover(wanted);
    }
    void leave() override {}
    const Outside& outside;
    bool closed = false;
  };

  /// With retry, operations wait for a lost root.
  static View all_of(const std::vector<Slot>& slots) {
    View view;
    for (const Slot slot : slots) view.members.push_back({slot, 0});
    return view;
  }
  static std::vector<Slot> world_of(const View& view) {
    std::vector<Slot> slots(view.slots);
    std::iota(slots.begin(), slots.end(), 0);
    return slots;
  }

  static std::vector<Slot> slots_of(const Group& group, const std::vector<uint32_t>& ranks) {
    std::vector<Slot> slots;
    for (const uint32_t rank : ranks) slots.push_back(group.slots.at(rank));
    return slots;
  }

  bool raises() const { return options_.on_failure == OnFailure::raise; }
  bool is_finished() const {
    return std::all_of(groups_.begin(), groups_.end(), [&](const auto& entry) {
      return entry.second.committed >= options_.target;
    });
  }
  /// Operations under way when an epoch recovers restart with their full time: a later failure is
  /// new.
  void begin_anew() {
    for (auto& [id, group] : groups_) {
      group.called = outside_.clock();
      group.called_after = recovered_;
    }
  }
  void put_failures_behind(std::vector<Slot> lost = {}) {
    if (options_.mutant == ProgramMutant::shrinks_alone) {
      engine_.repair(view_.epoch);
      recovered_ = std::max(recovered_, view_.epoch);
      return;
    }
    calls_.go_on(std::move(lost), view_);
  }
  bool grows(GroupId id) {
    const bool founder = came_in_ <= 1;
    if (id != 0 || !founder || options_.grow_at == 0) return false;
    return groups_.at(id).committed >= options_.grow_at && !std::exchange(has_grown_, true);
  }

  void settle() {
    for (auto& [id, group] : groups_) settle(id, group, ~Sequence{0});
    if (letters_ && view_.epoch > 0 && !over_) letters_->settle();
  }
  /// Reports operations up to `most` that have ended to the watcher.
  void settle(GroupId id, Group& group, Sequence most) {
    if (!group.operation || !group.operation->done()) return;
    const std::exception_ptr error = group.operation->error();
    if (!error && group.begun > most) return;  // done in the epoch that begins
    group.operation.reset();
    if (error) return fail(id, group, error);
    group.committed = group.begun;
    std::vector<Slot> active;
    int64_t sum = 0;
    for (const Slot slot : group.slots) {
      const auto member = view_.at(slot);
      if (!member) continue;
      active.push_back(slot);
      sum += contribution(*member, id, group.begun);
    }
    // With retry, operations wait until all ranks are present again.
    const bool lacks_ranks =
        options_.on_failure == OnFailure::retry && active.size() < group.slots.size();
    const auto wrong =
        static_cast<int64_t>(group.call->wrong(view_, group.slots) + (lacks_ranks ? 1 : 0));
    watcher_.committed(id, group.begun, view_, active, sum + wrong);
    if (is_finished() && view_.epoch > 1 && recovered_ < view_.epoch) put_failures_behind();
  }
  void fail(GroupId id, Group& group, const std::exception_ptr& error) {
    if (over_) return;
    const auto touched = static_cast<int64_t>(group.call->touched());
    watcher_.aborted(id, group.begun, contribution(self_, id, group.begun) + touched);
    try {
      std::rethrow_exception(error);
    } catch (const OperationAborted& aborted) {
      // An operation called before a recovering epoch that cannot be done in it is behind all.
      const bool is_behind = aborted.epoch < recovered_;
      if (raises() && !aborted.lost.empty() && !is_behind)
        put_failures_behind(slots_of(group, aborted.lost));
    } catch (const PeerTimeout&) {
      group.unsure = true;
      const bool by_itself = outside_.clock() >= group.called + options_.timeout;
      // A newcomer's own deadline is no older than the epoch in which it came.
      const Epoch after = by_itself ? std::max(group.called_after, came_in_) : group.called_after;
      watcher_.timed_out(id, group.begun, after, by_itself);
      put_failures_behind();
    } catch (const QuorumLost&) {
      group.unsure = true;
      put_failures_behind();
    }
    outside_.failed(id);
  }

  const Member self_;
  const Options options_;
  const Watcher watcher_;
  const Outside outside_;
  const std::shared_ptr<SimulatedTransport> transport_;
  std::map<GroupId, Group> groups_;  // the engine uses their memory, and that of letters
  std::optional<Letters> letters_;
  std::optional<Reunions> reunions_;
  Engine engine_;
  Control control_;
  View view_, channels_of_;
  Epoch came_in_ = 0;    // 0 for founders
  Epoch recovered_ = 0;  // last recovering epoch
  bool over_ = false;
  bool has_grown_ = false;
  RecoveryCalls calls_;
  std::optional<Instant> planned_;  ///< when the engine wants to be polled next
};

}  // namespace tokenyard::collectives::simulated
