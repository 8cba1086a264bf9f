/// An inbox that keeps what an Exchange delivers, for tests.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "control/exchange.hpp"

namespace tokenyard::control::testing {

inline Bytes message_of(const std::string& text) {
  const auto* begin = reinterpret_cast<const std::byte*>(text.data());
  return std::make_shared<const std::vector<std::byte>>(begin, begin + text.size());
}

class RecordedInbox final : public Inbox {
 public:
  /// A peer's messages, and how it went: "left" or "lost".
  struct Heard {
    std::vector<std::string> messages;
    std::optional<std::string> end;
    uint64_t incarnation = 0;
  };

  bool received(Slot from, std::vector<std::byte> message) override {
    std::string text(reinterpret_cast<const char*>(message.data()), message.size());
    if (before_each) before_each(text);
    const std::lock_guard lock(mutex_);
    if (heard_[from].end) ++after_the_end_;
    heard_[from].messages.push_back(std::move(text));
    changed_.notify_all();
    return accepts;
  }
  /// Begins with an empty record.
  void came(const Member& member) override {
    const std::lock_guard lock(mutex_);
    const bool is_next = heard_[member.slot].incarnation != 0;
    if (is_next && !heard_[member.slot].end) ++before_the_end_;
    heard_[member.slot] = {.messages = {}, .end = {}, .incarnation = member.incarnation};
    changed_.notify_all();
  }
  void gone(Slot peer, bool said_goodbye) override {
    const std::lock_guard lock(mutex_);
    if (heard_[peer].end) ++after_the_end_;
    heard_[peer].end = said_goodbye ? "left" : "lost";
    changed_.notify_all();
  }
  void evicted() override {
    const std::lock_guard lock(mutex_);
    ++evictions_;
    changed_.notify_all();
  }

  Heard of(Slot peer) const {
    const std::lock_guard lock(mutex_);
    const auto found = heard_.find(peer);
    return found == heard_.end() ? Heard{} : found->second;
  }
  std::optional<std::string> end_of(Slot peer) const { return of(peer).end; }
  int evictions() const {
    const std::lock_guard lock(mutex_);
    return evictions_;
  }
  /// Returns the number of deliveries for a peer that was gone already.
  int after_the_end() const {
    const std::lock_guard lock(mutex_);
    return after_the_end_;
  }
  /// Returns the number of processes that came before the end of the one before them.
  int before_the_end() const {
    const std::lock_guard lock(mutex_);
    return before_the_end_;
  }
  /// Waits until the condition holds; it may look at this inbox.
  bool wait(const std::function<bool()>& condition) const {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    for (;;) {
      if (condition()) return true;
      std::unique_lock lock(mutex_);
      if (std::chrono::steady_clock::now() >= until) return false;
      changed_.wait_for(lock, std::chrono::milliseconds(5));
    }
  }

  std::function<void(const std::string& message)> before_each;
  bool accepts = true;

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::map<Slot, Heard> heard_;
  int evictions_ = 0;
  int after_the_end_ = 0, before_the_end_ = 0;
};

}  // namespace tokenyard::control::testing
