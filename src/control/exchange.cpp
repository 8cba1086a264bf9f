#include "control/exchange.hpp"

#include <utility>

namespace tokenyard::control {

void Exchange::install(const View& view) {
  if (over_) return;
  view_ = view;
  for (const Member& member : view.members) {
    Peer& peer = peers_[member];
    // A link that broke before this process knew of the member may have been made anew.
    const bool is_new = !std::exchange(peer.was_member, true);
    const bool is_final = peer.said_goodbye || peer.sent_too_much;
    if (is_new && !is_final && links_.contains(member)) peer.ended = false;
    open(member);
  }
}

void Exchange::send(Slot to, Bytes message) {
  const auto member = view_ ? view_->at(to) : std::nullopt;
  if (member && !goodbye_) links_.send_in_parts(*member, std::move(message));
}

void Exchange::say_goodbye() {
  if (std::exchange(goodbye_, true) || !view_) return;
  for (const Member& member : view_->members) links_.say_goodbye(member);
}

void Exchange::evict() {
  if (!std::exchange(over_, true)) inbox_.evicted();
}

void Exchange::received(const Member& from, Topic topic, std::span<const std::byte> bytes) {
  if (over_ || is_former(from)) return;
  Peer& peer = peers_[from];
  if (peer.ended) return;
  if (topic == Topic::goodbye) {
    peer.said_goodbye = peer.ended = true;
  } else {
    peer.parts.insert(peer.parts.end(), bytes.begin(), bytes.end());
    peer.waiting_bytes += bytes.size();
    if (peer.parts.size() > kMessageMax || peer.waiting_bytes > kWaitingMax) {
      peer.parts.clear();
      peer.sent_too_much = peer.ended = true;
    } else if (topic == Topic::last) {
      peer.waiting.push_back(std::exchange(peer.parts, {}));
    }
  }
  deliver(from, peer);
}

void Exchange::ended(const Member& member) {
  if (over_) return;
  const auto found = peers_.find(member);
  // One that asks to join may link again, and be admitted then.
  const bool said_nothing = found == peers_.end() || found->second.waiting.empty();
  const bool is_stranger = found == peers_.end() || !found->second.was_member;
  if (view_ && is_stranger && said_nothing) {
    if (found != peers_.end()) peers_.erase(found);
    return;
  }
  Peer& peer = peers_[member];
  if (peer.ended) return;
  peer.ended = true;
  deliver(member, peer);
}

bool Exchange::is_heard(const Member& member) const {
  const auto heard = heard_.find(member.slot);
  return heard != heard_.end() && heard->second == member;
}

bool Exchange::is_former(const Member& member) const {
  if (!view_ || view_->contains(member) || is_heard(member)) return false;
  const auto found = peers_.find(member);
  return found != peers_.end() && found->second.was_member;
}

void Exchange::open(const Member& member) {
  const auto before = heard_.find(member.slot);
  if (before != heard_.end()) {
    if (before->second == member || !peers_[before->second].ended) return;
    peers_[before->second].parts.clear();
  }
  heard_[member.slot] = member;
  inbox_.came(member);
  deliver(member, peers_[member]);
}

void Exchange::deliver(const Member& from, Peer& peer) {
  if (!is_heard(from)) return;  // Nobody is, before there is a view.
  peer.waiting_bytes = peer.parts.size();
  for (std::vector<std::byte>& message : std::exchange(peer.waiting, {})) {
    if (inbox_.received(from.slot, std::move(message))) continue;
    peer.ended = true;
    break;
  }
  if (!peer.ended) return;
  inbox_.gone(from.slot, peer.said_goodbye);
  if (const auto next = view_->at(from.slot)) open(*next);
}

}  // namespace tokenyard::control
