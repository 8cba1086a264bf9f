#include "control/exchange.hpp"

#include <utility>

namespace tokenyard::control {

void Exchange::begin(const View& founders) {
  founders_ = founders;
  for (const Member& member : founders.members) {
    const auto peer = peers_.find(member);
    if (peer == peers_.end()) continue;
    // A link that broke before the beginning may have been made anew.
    if (!peer->second.said_goodbye && links_.contains(member)) peer->second.ended = false;
    deliver(member, peer->second);
  }
}

void Exchange::send(Slot to, Bytes message) {
  const auto member = founders_ ? founders_->at(to) : std::nullopt;
  if (member && !goodbye_) links_.send_in_parts(*member, std::move(message));
}

void Exchange::say_goodbye() {
  if (std::exchange(goodbye_, true) || !founders_) return;
  for (const Member& member : founders_->members) links_.say_goodbye(member);
}

void Exchange::evict() {
  if (!std::exchange(over_, true)) inbox_.evicted();
}

void Exchange::received(const Member& from, Topic topic, std::span<const std::byte> bytes) {
  if (over_ || (founders_ && !is_founder(from))) return;
  Peer& peer = peers_[from];
  if (peer.ended) return;
  if (topic == Topic::goodbye) {
    peer.said_goodbye = peer.ended = true;
  } else {
    peer.parts.insert(peer.parts.end(), bytes.begin(), bytes.end());
    if (peer.parts.size() > kMessageMax) {
      peer.parts.clear();
      peer.ended = true;
    } else if (topic == Topic::last) {
      peer.waiting.push_back(std::exchange(peer.parts, {}));
    }
  }
  deliver(from, peer);
}

void Exchange::ended(const Member& member) {
  if (over_ || (founders_ && !is_founder(member))) return;
  Peer& peer = peers_[member];
  if (peer.ended) return;
  peer.ended = true;
  deliver(member, peer);
}

bool Exchange::is_founder(const Member& member) const {
  return founders_->contains(member);
}

void Exchange::deliver(const Member& from, Peer& peer) {
  if (!founders_) return;
  for (std::vector<std::byte>& message : std::exchange(peer.waiting, {})) {
    if (inbox_.received(from.slot, std::move(message))) continue;
    peer.ended = true;
    break;
  }
  if (peer.ended) inbox_.gone(from.slot, peer.said_goodbye);
}

}  // namespace tokenyard::control
