/// What a member knows of the others: when each was last heard, and what speaks against it.
#pragma once

#include <vector>

#include "membership/view.hpp"

namespace tokenyard::membership {

struct Peer {
  Member member;
  Epoch since = 0;  ///< the first epoch in which this process was seen as a member
  Instant heard{};
  bool silent = false, reset = false;
  bool deaf = false;          ///< says that it does not hear this member
  bool wants_change = false;  ///< says that the epoch must end
  bool leaving = false;       ///< said goodbye
  bool recovers = false;      ///< says that what has failed is behind it

  bool is_heard() const { return !silent && !reset; }
  /// Can be talked with, both ways.
  bool answers() const { return is_heard() && !deaf; }
};

class Roster {
 public:
  /// Who was a member before keeps what is known of its connection; the rest was the old epoch's.
  void install(const View& view, const Member& self, Instant now);

  std::vector<Peer>& peers() { return peers_; }
  const std::vector<Peer>& peers() const { return peers_; }
  Peer* at(Slot slot);
  const Peer* at(Slot slot) const;

  /// A sign of life overrules what looked like death.
  void heard(Peer& peer, Instant now);
  /// Suspects who was not heard for so long. Returns whether that is new of anybody.
  bool notice_silence(Instant now, std::chrono::nanoseconds silence);
  /// This process itself was away: nobody else is to blame for what it did not hear.
  void forgive(Instant now);
  /// Members that are not heard.
  std::vector<Slot> suspected() const;

 private:
  std::vector<Peer> peers_;
};

}  // namespace tokenyard::membership
