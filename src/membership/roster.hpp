/// A member's knowledge of each other member: when it was last heard, and the evidence against it.
#pragma once

#include <vector>

#include "membership/view.hpp"

namespace tokenyard::membership {

struct Peer {
  Member member;
  Epoch since = 0;  ///< first epoch in which this process was a member
  Instant heard{};
  bool silent = false, reset = false;
  bool deaf = false;          ///< it reports that it does not hear this member
  bool wants_change = false;  ///< it has a reason to end the epoch
  bool leaving = false;       ///< it said goodbye
  bool recovers = false;      ///< it has put all failures behind it

  bool is_heard() const { return !silent && !reset; }
  /// Whether messages get through in both directions.
  bool answers() const { return is_heard() && !deaf; }
};

class Roster {
 public:
  /// Keeps the connection state of processes that were members before; drops the rest.
  void install(const View& view, const Member& self, Instant now);

  std::vector<Peer>& peers() { return peers_; }
  const std::vector<Peer>& peers() const { return peers_; }
  Peer* at(Slot slot);
  const Peer* at(Slot slot) const;

  /// Clears suspicions: a message proves that the peer lives.
  void heard(Peer& peer, Instant now);
  /// Suspects peers not heard for `silence`. Returns whether any suspicion is new.
  bool notice_silence(Instant now, std::chrono::nanoseconds silence);
  /// Restarts the silence of all peers: this process itself was away and did not listen.
  void forgive(Instant now);
  /// Returns the members that are not heard.
  std::vector<Slot> suspected() const;

 private:
  std::vector<Peer> peers_;
};

}  // namespace tokenyard::membership
