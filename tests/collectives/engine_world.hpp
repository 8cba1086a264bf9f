/// Engines of several ranks in one thread, polled in turns, with a scripted control plane.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <set>
#include <vector>

#include "collectives/engine/engine.hpp"
#include "collectives/memory_transport.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard::collectives::testing {

using namespace std::chrono_literals;

class RecordingControl final : public control::MembershipControl {
 public:
  void report_timeout(const TimeoutReport& timeout_report, Epoch) override {
    timeout_reports.insert(timeout_report);
  }
  void admit(const std::vector<Slot>& slots, Epoch) override {
    admitted.insert(slots.begin(), slots.end());
  }
  void withdraw(const std::vector<Slot>& slots) override {
    for (const Slot slot : slots) admitted.erase(slot);
  }
  void evict(const Member& member) override { evicted.insert(member); }
  void recover(bool wanted) override { recovers = wanted; }
  void leave() override { left = true; }
  std::set<TimeoutReport> timeout_reports;
  std::set<Slot> admitted;
  std::set<Member> evicted;
  bool recovers = false, left = false;
};

struct WorldOptions {
  uint32_t ranks = 2;
  size_t ring_bytes = 64 << 10;
  size_t chunk_bytes = 4 << 10;
  OnFailure on_failure = OnFailure::raise;
  Places places = Places::kept;
  EngineMutant mutant = EngineMutant::none;
  std::vector<uint64_t> hosts = {};  ///< of each rank; empty: one for all
};

class EngineWorld {
 public:
  explicit EngineWorld(const WorldOptions& options)
      : network_(options.ring_bytes), options_(options), controls_(options.ranks) {
    for (Slot slot = 0; slot < options.ranks; ++slot) {
      if (!options.hosts.empty()) network_.hosts[slot] = options.hosts[slot];
      engines_.push_back(make_engine(slot));
      members_.push_back({slot, 1});
    }
    Verdict first = {.next = {.epoch = 1, .slots = options.ranks, .members = members_}};
    for (auto& engine : engines_) engine->install(first, {});
    epoch_ = 1;
  }

  Engine& engine(Slot slot) { return *engines_.at(slot); }
  /// For bytes that no engine sends.
  MemoryNetwork& network() { return network_; }
  RecordingControl& control(Slot slot) { return controls_.at(slot); }
  Instant now() const { return now_; }
  Epoch epoch() const { return epoch_; }
  void pass(Instant time) { now_ += time; }

  std::shared_ptr<Operation> start(Slot slot, Call call, GroupId group = 0,
                                   std::chrono::nanoseconds timeout = 10s) {
    return engine(slot).start(group, std::move(call), timeout);
  }

  /// Polls every rank that is neither stopped nor killed, `rounds` times or until all is done.
  void poll(int rounds) {
    for (int round = 0; round < rounds; ++round) {
      now_ += 1us;
      for (Slot slot = 0; slot < engines_.size(); ++slot) {
        if (!stopped_.contains(slot)) engine(slot).poll(true);
      }
    }
  }
  void run(const std::vector<std::shared_ptr<Operation>>& operations, int rounds_max = 200000) {
    for (int round = 0; round < rounds_max; ++round) {
      bool all = true;
      for (const auto& operation : operations) all = all && operation->done();
      if (all) return;
      poll(1);
    }
    for (const auto& operation : operations) {
      if (!operation->done())
        ADD_FAILURE() << describe(operation->call.signature) << " does not end";
    }
  }

  void stop(Slot slot) { stopped_.insert(slot); }
  void wake(Slot slot) { stopped_.erase(slot); }

  /// Returns the verdict that the members not in `lost` agree on.
  Verdict agree(const std::vector<Slot>& lost, const std::vector<Member>& newcomers = {}) {
    Verdict verdict = {.next = {.epoch = ++epoch_, .slots = options_.ranks}, .lost = lost};
    for (const Slot slot : lost) stopped_.insert(slot);
    std::map<GroupId, GroupProgress> groups;
    std::vector<Member> next;
    for (const Member& member : members_) {
      if (std::find(lost.begin(), lost.end(), member.slot) != lost.end()) continue;
      next.push_back(member);
      for (const GroupProgress& progress : engine(member.slot).freeze(epoch_ - 1)) {
        GroupProgress& known = groups.try_emplace(progress.group, progress).first->second;
        known.committed = std::max(known.committed, progress.committed);
        known.stage = std::max(known.stage, progress.stage);
      }
    }
    for (const Member& newcomer : newcomers) {
      next.push_back(newcomer);
      engines_.at(newcomer.slot) = make_engine(newcomer.slot);
      stopped_.erase(newcomer.slot);
    }
    std::sort(next.begin(), next.end());
    members_ = verdict.next.members = next;
    for (const auto& [id, progress] : groups) verdict.groups.push_back(progress);
    return verdict;
  }
  void install(const Verdict& verdict) {
    for (const Member& member : verdict.next.members) engine(member.slot).install(verdict, {});
  }

 private:
  std::unique_ptr<Engine> make_engine(Slot slot) {
    auto engine = std::make_unique<Engine>(std::make_shared<MemoryTransport>(network_, slot),
                                           EngineOptions{.self = slot,
                                                         .on_failure = options_.on_failure,
                                                         .places = options_.places,
                                                         .chunk_bytes = options_.chunk_bytes,
                                                         .mutant = options_.mutant},
                                           [this] { return now_; });
    engine->use(controls_[slot]);
    GroupIdentity world = {.id = 0, .name = "world", .self = slot};
    for (Slot other = 0; other < options_.ranks; ++other) world.slots.push_back(other);
    engine->add_group(world);
    return engine;
  }

  MemoryNetwork network_;
  const WorldOptions options_;
  std::vector<RecordingControl> controls_;
  std::vector<std::unique_ptr<Engine>> engines_;
  std::vector<Member> members_;
  std::set<Slot> stopped_;
  Epoch epoch_ = 0;
  Instant now_ = 0s;
};

/// Returns an operation's error, which must be an `Error`; null if it succeeded.
template <typename Error>
std::shared_ptr<Error> failure_of(const Outcome& outcome) {
  try {
    if (outcome.error()) std::rethrow_exception(outcome.error());
  } catch (const Error& error) {
    return std::make_shared<Error>(error);
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another error: " << error.what();
  }
  return nullptr;
}

inline std::string error_text(const Outcome& outcome) {
  try {
    if (outcome.error()) std::rethrow_exception(outcome.error());
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

}  // namespace tokenyard::collectives::testing
