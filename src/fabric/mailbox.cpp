#include "fabric/mailbox.hpp"

#include <utility>

namespace tokenyard {

Mailbox::Mailbox(uint32_t seats) : seats_(seats) {}

bool Mailbox::put(uint32_t from, Message message) {
  const std::lock_guard lock(mutex_);
  Seat& seat = seats_.at(from);
  if (message.kind == MessageKind::rebuild) {
    seat.rebuild = std::move(message);
    for (const auto& [number, watch] : watchers_)
      if (watch.rebuild_watcher) watch.rebuild_watcher(from, *seat.rebuild);
    return true;
  }
  if (seat.collectives.size() >= kMessagesMax) return false;
  seat.collectives.push_back(std::move(message));
  return true;
}

std::optional<Message> Mailbox::take(uint32_t from, uint32_t generation, uint64_t sequence) {
  const std::lock_guard lock(mutex_);
  std::deque<Message>& queue = seats_.at(from).collectives;
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

std::optional<Message> Mailbox::latest_rebuild(uint32_t from, uint32_t generation) {
  const std::lock_guard lock(mutex_);
  const std::optional<Message>& rebuild = seats_.at(from).rebuild;
  return rebuild && rebuild->generation == generation ? rebuild : std::nullopt;
}

PeerState Mailbox::state(uint32_t seat) const {
  const std::lock_guard lock(mutex_);
  return seats_.at(seat).state;
}

void Mailbox::mark(uint32_t seat, PeerState state) {
  const std::lock_guard lock(mutex_);
  if (seats_.at(seat).state != PeerState::present) return;
  seats_[seat].state = state;
  for (const auto& [number, watch] : watchers_) watch.watcher(seat, state);
}

uint64_t Mailbox::watch(Watcher watcher, RebuildWatcher rebuild_watcher) {
  const std::lock_guard lock(mutex_);
  for (uint32_t seat = 0; seat < seats_.size(); ++seat) {
    if (seats_[seat].state != PeerState::present) watcher(seat, seats_[seat].state);
    if (rebuild_watcher && seats_[seat].rebuild) rebuild_watcher(seat, *seats_[seat].rebuild);
  }
  watchers_.emplace(++watches_, Watch{std::move(watcher), std::move(rebuild_watcher)});
  return watches_;
}

void Mailbox::unwatch(uint64_t watch) {
  const std::lock_guard lock(mutex_);
  watchers_.erase(watch);
}

}  // namespace tokenyard
