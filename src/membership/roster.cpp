#include "membership/roster.hpp"

#include <algorithm>
#include <utility>

namespace tokenyard::membership {

void Roster::install(const View& view, const Member& self, Instant now) {
  std::vector<Peer> peers;
  for (const Member& member : view.members) {
    if (member == self) continue;
    Peer peer{.member = member, .since = view.epoch, .heard = now};
    if (const Peer* before = at(member.slot); before != nullptr && before->member == member) {
      peer.since = before->since;
      peer.heard = before->heard;
      peer.silent = before->silent;
      peer.reset = before->reset;
    }
    peers.push_back(peer);
  }
  peers_ = std::move(peers);
}

const Peer* Roster::at(Slot slot) const {
  for (const Peer& peer : peers_) {
    if (peer.member.slot == slot) return &peer;
  }
  return nullptr;
}

Peer* Roster::at(Slot slot) {
  return const_cast<Peer*>(std::as_const(*this).at(slot));
}

void Roster::heard(Peer& peer, Instant now) {
  peer.heard = std::max(peer.heard, now);
  peer.silent = peer.reset = false;
}

bool Roster::notice_silence(Instant now, std::chrono::nanoseconds silence) {
  bool anybody = false;
  for (Peer& peer : peers_) {
    if (peer.silent || now - peer.heard < silence) continue;
    anybody |= peer.is_heard();
    peer.silent = true;
  }
  return anybody;
}

void Roster::forgive(Instant now) {
  for (Peer& peer : peers_) {
    if (peer.reset) continue;
    peer.heard = now;
    peer.silent = false;
  }
}

std::vector<Slot> Roster::suspected() const {
  std::vector<Slot> slots;
  for (const Peer& peer : peers_) {
    if (!peer.is_heard()) slots.push_back(peer.member.slot);
  }
  return slots;
}

}  // namespace tokenyard::membership
