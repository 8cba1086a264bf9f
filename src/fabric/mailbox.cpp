#include "fabric/mailbox.hpp"

#include <algorithm>
#include <utility>

namespace tokenyard {

Mailbox::Mailbox(uint32_t slots) : slots_(slots) {}

bool Mailbox::put(uint32_t from, Message message) {
  const std::lock_guard lock(mutex_);
  SlotState& slot = slots_.at(from);
  if (message.kind != MessageKind::collective) {
    for (Watcher* const watcher : watchers_) watcher->said(from, message);
    if (message.kind == MessageKind::rebuild) slot.rebuild = std::move(message);
    return true;
  }
  if (slot.collectives.size() >= kMessagesMax) return false;
  slot.collectives.push_back(std::move(message));
  return true;
}

std::optional<Message> Mailbox::take(uint32_t from, uint32_t generation, uint64_t sequence) {
  const std::lock_guard lock(mutex_);
  std::deque<Message>& queue = slots_.at(from).collectives;
  const auto older = [&](const Message& message) {
    return std::pair(message.generation, message.sequence) < std::pair(generation, sequence);
  };
  while (!queue.empty() && older(queue.front())) queue.pop_front();
  if (queue.empty()) return std::nullopt;
  Message& front = queue.front();
  if (front.generation != generation || front.sequence != sequence) return std::nullopt;
  std::optional<Message> taken(std::move(front));
  queue.pop_front();
  return taken;
}

std::optional<Message> Mailbox::latest_rebuild(uint32_t from) const {
  const std::lock_guard lock(mutex_);
  return slots_.at(from).rebuild;
}

PeerState Mailbox::state(uint32_t slot) const {
  const std::lock_guard lock(mutex_);
  return slots_.at(slot).state;
}

void Mailbox::mark(uint32_t slot, PeerState state) {
  const std::lock_guard lock(mutex_);
  if (slots_.at(slot).state != PeerState::present) return;
  slots_[slot].state = state;
  for (Watcher* const watcher : watchers_) watcher->went(slot, state);
}

void Mailbox::revive(uint32_t slot) {
  const std::lock_guard lock(mutex_);
  if (slot >= slots_.size()) slots_.resize(slot + 1);  // The job has grown.
  slots_[slot] = {};
}

void Mailbox::note_generation(uint32_t generation) {
  const std::lock_guard lock(mutex_);
  newest_generation_ = std::max(newest_generation_, generation);
}

uint32_t Mailbox::newest_generation() const {
  const std::lock_guard lock(mutex_);
  return newest_generation_;
}

void Mailbox::watch(Watcher& watcher) {
  const std::lock_guard lock(mutex_);
  for (uint32_t slot = 0; slot < slots_.size(); ++slot) {
    if (slots_[slot].state != PeerState::present) watcher.went(slot, slots_[slot].state);
    if (slots_[slot].rebuild) watcher.said(slot, *slots_[slot].rebuild);
  }
  watchers_.push_back(&watcher);
}

void Mailbox::unwatch(Watcher& watcher) {
  const std::lock_guard lock(mutex_);
  std::erase(watchers_, &watcher);
}

}  // namespace tokenyard
