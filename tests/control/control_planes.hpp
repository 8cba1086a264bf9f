/// Control planes of several ranks in one process, each with its own thread, and recorders in place
/// of their engines.
#pragma once

#include <gtest/gtest.h>

#include <condition_variable>
#include <filesystem>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "control/control.hpp"
#include "fabric/ranks.hpp"
#include "fabric/worlds.hpp"

namespace tokenyard::control::testing {

using namespace std::chrono_literals;
using std::chrono::steady_clock;

/// Records what the control plane calls.
class Recorder final : public Participant {
 public:
  std::vector<GroupProgress> freeze(Epoch) override {
    std::unique_lock lock(mutex_);
    const std::shared_future<void> moment = until_it_freezes_;
    freezes_ = true;
    changed_.notify_all();
    lock.unlock();
    if (moment.valid()) moment.wait_for(20s);
    lock.lock();
    return {{.group = 0, .slots = {}, .committed = committed_, .begun = committed_}};
  }
  void install(const Verdict& verdict, const Contacts& contacts) override {
    post([&] {
      verdicts_.push_back(verdict);
      contacts_ = contacts;
    });
  }
  void fenced(Epoch epoch, const std::string& why) override {
    post([&] {
      fenced_ = why;
      fenced_in_ = epoch;
    });
  }
  void quorum_missing(const std::vector<Slot>& answering, uint32_t needed) override {
    post([&] { missing_ = answering.size() < needed; });
  }

  void commit(Sequence last) {
    post([&] { committed_ = last; });
  }
  /// Delays the answer to `freeze`. Set it before there is a reason to freeze.
  void freeze_after(std::shared_future<void> moment) {
    post([&] { until_it_freezes_ = std::move(moment); });
  }
  /// Waits until the last view satisfies the condition; returns false on timeout.
  template <class Condition>
  bool wait_for_view(Condition condition, std::chrono::milliseconds at_most = 20s) {
    return wait([&] { return !verdicts_.empty() && condition(verdicts_.back().next); }, at_most);
  }
  bool wait_for_members(size_t members) {
    return wait_for_view([&](const View& view) { return view.members.size() == members; });
  }
  bool wait_to_be_fenced() {
    return wait([&] { return fenced_.has_value(); });
  }
  /// Waits until it was asked to freeze.
  bool wait_to_freeze() {
    return wait([&] { return freezes_; });
  }
  bool wait_for_missing_quorum() {
    return wait([&] { return missing_; });
  }
  Verdict last() const {
    const std::lock_guard lock(mutex_);
    return verdicts_.back();
  }
  /// Returns the epoch since which it is no member.
  Epoch fenced_in() const {
    const std::lock_guard lock(mutex_);
    return fenced_in_;
  }
  Contacts contacts() const {
    const std::lock_guard lock(mutex_);
    return contacts_;
  }

 private:
  template <class Change>
  void post(Change change) {
    const std::lock_guard lock(mutex_);
    change();
    changed_.notify_all();
  }
  template <class Condition>
  bool wait(Condition condition, std::chrono::milliseconds at_most = 20s) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, at_most, condition);
  }

  Sequence committed_ = 0;
  std::shared_future<void> until_it_freezes_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Verdict> verdicts_;
  Contacts contacts_;
  std::optional<std::string> fenced_;
  Epoch fenced_in_ = 0;
  bool missing_ = false, freezes_ = false;
};

/// A contact that encodes slot and life, so that its owner can be recognised.
inline Contact contact_of(Slot slot, int life = 1) {
  return {static_cast<std::byte>(slot), static_cast<std::byte>(life)};
}

struct Rank {
  explicit Rank(const ControlOptions& options, Inbox* inbox = nullptr)
      : control(std::make_unique<Control>(options, inbox)), slot(options.slot) {}
  void found() { control->found(recorder, contact_of(slot)); }
  void join() { control->join(recorder, contact_of(slot, 2)); }
  Recorder recorder;
  std::unique_ptr<Control> control;
  Slot slot;
};

class ControlPlane : public ::testing::Test {
 protected:
  ControlPlane() {
    std::string pattern = ::testing::TempDir() + "tokenyard-control-XXXXXX";
    directory_ = mkdtemp(pattern.data());
  }
  ~ControlPlane() override { std::filesystem::remove_all(directory_); }

  ControlOptions options(Slot slot, uint32_t slots) const {
    ControlOptions options;
    options.store = "file:" + directory_.string();
    options.secret = "secret";
    options.slot = slot;
    options.slots = options.slots_max = slots;
    options.address = "127.0.0.1";
    options.timeout = 20s;
    options.membership.heartbeat = 20ms;
    options.membership.silence = 2s;
    options.membership.ballot = 50ms;
    options.membership.witness = true;
    return options;
  }
  std::vector<std::unique_ptr<Rank>> found(uint32_t slots) {
    std::vector<std::unique_ptr<Rank>> ranks(slots);
    on_every_rank(slots, [&](uint32_t slot) {
      ranks[slot] = std::make_unique<Rank>(options(slot, slots));
      ranks[slot]->found();
    });
    return ranks;
  }

  /// One of two ranks without a witness, so that each misses its quorum without the other.
  std::unique_ptr<Rank> one_of_two(Slot slot, std::chrono::seconds silence) const {
    ControlOptions own = options(slot, 2);
    own.membership.witness = false;
    own.membership.silence = silence;
    return std::make_unique<Rank>(own);
  }

  std::filesystem::path directory_;
};

}  // namespace tokenyard::control::testing
