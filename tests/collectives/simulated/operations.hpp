/// A stand-in for the engine: operations that add up one number per rank, in place, by messages; a
/// commit round; undo; everything that the membership demands of a participant. Small, so that the
/// protocol runs through thousands of disasters per second.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "collectives/simulated/program.hpp"
#include "membership/invariant.hpp"

namespace tokenyard::collectives::simulated {

/// Deliberate bugs of the engine's part of the protocol.
enum class StandInMutant : uint8_t {
  none,
  commits_before_the_round_is_over,
  commits_while_frozen,
  undo_forgotten,
  stale_epoch_accepted,
  sequence_not_restored,  ///< goes on with the next operation after an abort
};

/// The content of a frame of an operation.
struct Frame {
  Epoch epoch = 0;
  GroupId group = 0;
  Sequence sequence = 0;
  uint32_t step = 0;  ///< 0: data; then the steps of the commit round
  int64_t value = 0;
};

class Operations final : public Program {
 public:
  struct Options {
    Sequence target = 0;     ///< number of operations of each group in the program
    bool only_full = false;  ///< retry: waits until the first `full` ranks are all present
    bool raises = false;     ///< the caller hears of every abort
    uint32_t full = 0;       ///< number of those ranks
    bool knows_only_neighbours = false;  ///< as in a ring: blames the rank it would receive from
    StandInMutant mutant = StandInMutant::none;
  };
  using Send = std::function<void(Slot to, Frame frame)>;

  Operations(Member self, Options options, Watcher watcher, std::function<void()> recover,
             Send send)
      : self_(self),
        options_(options),
        watcher_(std::move(watcher)),
        recover_(std::move(recover)),
        send_(std::move(send)) {}

  void add_group(GroupId id, std::vector<Slot> slots) override {
    if (std::find(slots.begin(), slots.end(), self_.slot) != slots.end())
      groups_[id].slots = std::move(slots);
  }

  bool begin(GroupId id) override {
    Group& group = groups_.at(id);
    if (view_.epoch == 0 || group.running || group.committed >= options_.target || frozen_ ||
        over_ || recovering_)
      return false;
    if (options_.only_full && !is_full(group)) return false;
    group.running = true;
    group.begun = group.committed + 1 + group.skipped;
    group.step = 0;
    group.arrived.clear();
    group.input = group.buffer = contribution(self_, id, group.begun);
    for (const Slot slot : active(group)) {
      if (slot != self_.slot) send_(slot, {view_.epoch, id, group.begun, 0, group.input});
    }
    advance(id, group);
    return true;
  }

  void receive(Slot from, const Frame& frame) {
    if (over_) return;
    const bool stale = frame.epoch < view_.epoch;
    if (stale && options_.mutant != StandInMutant::stale_epoch_accepted) return;
    frames_[stale ? view_.epoch : frame.epoch][{frame.group, frame.sequence, from, frame.step}] =
        frame.value;
    const auto found = groups_.find(frame.group);
    if (found != groups_.end()) advance(found->first, found->second);
  }

  std::vector<Slot> waiting_for(GroupId id, Sequence sequence) const override {
    const Group& group = groups_.at(id);
    std::vector<Slot> slots;
    if (!group.running || group.begun != sequence || frozen_) return slots;
    for (const Slot slot : active(group)) {
      if (slot != self_.slot && !group.arrived.contains(slot)) slots.push_back(slot);
    }
    if (slots.empty() && group.step > 0) return {partner(group, group.step, false)};
    if (!slots.empty() && options_.knows_only_neighbours) return {partner(group, 1, false)};
    return slots;
  }

  // ---- Participant ------------------------------------------------------------------------------

  std::vector<GroupProgress> freeze(Epoch epoch) override {
    membership::invariant(epoch == view_.epoch, "an epoch ends that is not this one");
    frozen_ = options_.mutant != StandInMutant::commits_while_frozen;
    return progress();
  }

  void install(const Verdict& verdict, const Contacts&) override {
    const bool newcomer = view_.epoch == 0;
    for (const GroupProgress& published : verdict.groups) {
      if (newcomer) add_group(published.group, published.slots);
      const auto found = groups_.find(published.group);
      if (found != groups_.end())
        end_epoch(found->first, found->second, published.committed, newcomer);
    }
    view_ = verdict.next;
    frozen_ = quorum_missing_ = false;
    frames_.erase(frames_.begin(), frames_.lower_bound(view_.epoch));
    if (verdict.recovers) recovering_ = false;
    const bool failed = options_.raises && !verdict.recovers && !verdict.lost.empty();
    if (failed && !newcomer && !std::exchange(recovering_, true)) recover_();
  }

  void fenced(Epoch, const std::string&) override { over_ = true; }
  void quorum_missing(const std::vector<Slot>& answering, uint32_t needed) override {
    quorum_missing_ = answering.size() < needed;
  }

  std::vector<GroupProgress> progress() const override { return progress_of(groups_); }
  Sequence begun(GroupId id) const override { return groups_.at(id).begun; }
  bool running(GroupId id) const override { return groups_.at(id).running; }
  const View& view() const override { return view_; }
  bool frozen() const override { return frozen_; }
  bool misses_quorum() const override { return quorum_missing_; }

 private:
  struct Group {
    std::vector<Slot> slots;
    Sequence committed = 0, begun = 0;
    Sequence skipped = 0;
    bool running = false;
    uint32_t step = 0;  ///< 0: data; then the step of the commit round whose frame is awaited
    std::set<Slot> arrived;
    int64_t input = 0, buffer = 0;
  };
  using FrameKey = std::tuple<GroupId, Sequence, Slot, uint32_t>;

  std::vector<Slot> active(const Group& group) const {
    std::vector<Slot> slots;
    for (const Slot slot : group.slots) {
      if (view_.at(slot)) slots.push_back(slot);
    }
    return slots;
  }
  bool is_full(const Group& group) const {
    return std::all_of(group.slots.begin(), group.slots.end(), [&](Slot slot) {
      return slot >= options_.full || view_.at(slot).has_value();
    });
  }
  /// Returns the partner in a step of the commit round (the dissemination barrier of Hensgen,
  /// Finkel and Manber): the rank to send to, or to receive from.
  Slot partner(const Group& group, uint32_t step, bool to) const {
    const std::vector<Slot> slots = active(group);
    const size_t ranks = slots.size();
    const auto rank =
        static_cast<size_t>(std::find(slots.begin(), slots.end(), self_.slot) - slots.begin());
    const size_t distance = (size_t{1} << (step - 1)) % ranks;
    return slots[(to ? rank + distance : rank + ranks - distance) % ranks];
  }

  bool has_arrived(GroupId id, const Group& group, Slot from, uint32_t step, int64_t* value) const {
    const auto epoch = frames_.find(view_.epoch);
    if (epoch == frames_.end()) return false;
    const auto frame = epoch->second.find({id, group.begun, from, step});
    if (frame == epoch->second.end()) return false;
    *value = frame->second;
    return true;
  }

  void advance(GroupId id, Group& group) {
    if (!group.running || frozen_) return;
    const std::vector<Slot> slots = active(group);
    int64_t value = 0;
    if (group.step == 0) {
      bool complete = true;
      for (const Slot slot : slots) {
        if (slot == self_.slot || group.arrived.contains(slot)) continue;
        if (has_arrived(id, group, slot, 0, &value)) {
          group.buffer += value;
          group.arrived.insert(slot);
        } else {
          complete = false;
        }
      }
      if (!complete) return;
      enter_step(id, group, 1, slots.size());
    }
    while (group.running &&
           has_arrived(id, group, partner(group, group.step, false), group.step, &value))
      enter_step(id, group, group.step + 1, slots.size());
  }

  void enter_step(GroupId id, Group& group, uint32_t step, size_t ranks) {
    group.step = step;
    const bool over = (size_t{1} << (step - 1)) >= ranks;
    if (!over) send_(partner(group, step, true), {view_.epoch, id, group.begun, step, 0});
    if (over || options_.mutant == StandInMutant::commits_before_the_round_is_over)
      commit(id, group);
  }

  void commit(GroupId id, Group& group) {
    group.running = false;
    group.committed = group.begun;
    watcher_.committed(id, group.begun, view_, active(group), group.buffer);
  }

  void end_epoch(GroupId id, Group& group, Sequence committed, bool newcomer) {
    if (newcomer) group.committed = group.begun = committed;
    if (group.running && group.begun <= committed) {
      commit(id, group);
    } else if (group.running) {
      if (options_.mutant != StandInMutant::undo_forgotten) group.buffer = group.input;
      group.running = false;
      watcher_.aborted(id, group.begun, group.buffer);
      if (options_.mutant == StandInMutant::sequence_not_restored) group.skipped = 1;
    }
    group.begun = group.committed;
  }

  const Member self_;
  const Options options_;
  const Watcher watcher_;
  const std::function<void()> recover_;
  const Send send_;
  View view_;
  bool frozen_ = false, over_ = false, quorum_missing_ = false;
  bool recovering_ = false;  ///< waits until all have put the loss of ranks behind them
  std::map<GroupId, Group> groups_;
  std::map<Epoch, std::map<FrameKey, int64_t>> frames_;
};

}  // namespace tokenyard::collectives::simulated
