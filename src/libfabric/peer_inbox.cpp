#include "libfabric/peer_inbox.hpp"

#include <cstring>

#include "net/protocol_error.hpp"

namespace tokenyard::libfabric {

PeerInbox::PeerInbox(const Options& options, const RegisteredRegions& regions,
                     InboxListener& listener)
    : options_(options), regions_(regions), listener_(listener), ended_(options.queues) {}

void PeerInbox::receive(const Message& message) {
  if (message.queue >= options_.queues)
    throw net::ProtocolError("sent a message of a queue that does not exist");
  const uint32_t ahead = message.sequence - sequence_;
  if (ahead >= options_.credits || early_.contains(message.sequence))
    throw net::ProtocolError("sent a message out of its sequence");
  if (ahead != 0) {
    early_.emplace(message.sequence, message);
    return;
  }
  take(message);
  for (auto next = early_.find(++sequence_); next != early_.end();
       next = early_.find(++sequence_)) {
    take(next->second);
    early_.erase(next);
  }
}

void PeerInbox::take(const Message& message) {
  switch (message.kind) {
    case MessageKind::signal:
    case MessageKind::settle:
    case MessageKind::fence:
    case MessageKind::released:
      if (waiting_.size() == options_.credits)
        throw net::ProtocolError("sent more messages than it has credits");
      waiting_.push_back(message);
      return resume();
    case MessageKind::put_inline:
      if (message.inline_bytes != 0) {
        if (std::byte* const target = target_of(message, message.inline_bytes))
          std::memcpy(target, message.inlined.data(), message.inline_bytes);
      }
      break;
    case MessageKind::skipped:
      landed(message.queue, message.group, message.turn);
      break;
    default:
      listener_.take(options_.peer, message);
  }
  if (message.kind != MessageKind::credit) listener_.credited(options_.peer);
}

void PeerInbox::landed(uint32_t queue, uint32_t group, uint32_t count) {
  if (queue >= options_.queues) throw net::ProtocolError("wrote for a queue that does not exist");
  landed_[{queue, group}] += count;
  resume();
}

/// Lets messages take effect that need not wait any longer, each behind those of its queue.
void PeerInbox::resume() {
  std::vector<bool> held(options_.queues);
  bool any_held = false;
  for (size_t index = 0; index < waiting_.size();) {
    const Message message = waiting_[index];
    bool due = !any_held;
    if (message.kind != MessageKind::released) {
      const auto landed = landed_.find({message.queue, message.group});
      const uint32_t puts = landed == landed_.end() ? 0 : landed->second;
      due = !held[message.queue] && puts >= message.puts;
      if (due && landed != landed_.end()) landed_.erase(landed);
      if (!due) held[message.queue] = true;
    }
    if (!due) {
      any_held = true;
      ++index;
      continue;
    }
    waiting_.erase(waiting_.begin() + static_cast<ptrdiff_t>(index));
    take_effect(message);
    listener_.credited(options_.peer);
  }
}

void PeerInbox::take_effect(const Message& message) {
  if (message.kind == MessageKind::released) return listener_.released(options_.peer, message.key);
  if (ended_[message.queue] || message.kind == MessageKind::fence) return;
  if (message.kind == MessageKind::settle)
    return listener_.answer_settled(options_.peer, message.queue, message.turn);
  std::byte* const target = target_of(message, sizeof(uint64_t));
  if (target == nullptr) return;
  const uint64_t apart = reinterpret_cast<uintptr_t>(target) % sizeof(uint64_t);
  if (apart != 0) {
    return refuse(message.queue, NetworkCheck::alignment,
                  {.region = region_of_key(message.key), .expected = 0, .seen = apart});
  }
  // Releases the earlier puts of the queue, which have landed before this thread was told.
  __atomic_fetch_add(reinterpret_cast<uint64_t*>(target), message.addend, __ATOMIC_RELEASE);
}

std::byte* PeerInbox::target_of(const Message& message, uint64_t bytes) {
  if (ended_[message.queue]) return nullptr;
  const uint32_t region = region_of_key(message.key);
  const std::span<std::byte>* const memory = regions_.find(message.key);
  if (memory == nullptr) {
    // The right key is not for a peer that does not hold it.
    refuse(message.queue, NetworkCheck::target,
           {.region = region, .expected = 0, .seen = message.key});
    return nullptr;
  }
  if (!regions_.is_by_host(message.key)) {
    // Long puts alone go to memory of a GPU.
    refuse(message.queue, NetworkCheck::request,
           {.region = region,
            .expected = static_cast<uint64_t>(NetworkRequest::Kind::put),
            .seen = static_cast<uint64_t>(message.kind == MessageKind::signal
                                              ? NetworkRequest::Kind::signal
                                              : NetworkRequest::Kind::put_inline)});
    return nullptr;
  }
  if (lies_within(message.offset, bytes, memory->size())) return memory->data() + message.offset;
  refuse(message.queue, NetworkCheck::target_range,
         {.region = region, .expected = memory->size(), .seen = message.offset + bytes});
  return nullptr;
}

void PeerInbox::refuse(uint32_t queue, NetworkCheck check, const NetworkRefusal& refusal) {
  if (ended_[queue]) return;
  ended_[queue] = true;
  listener_.refuse(options_.peer, queue, check, refusal);
}

}  // namespace tokenyard::libfabric
