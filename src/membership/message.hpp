/// What members say to one another about the membership. Pure: structs here, bytes in the codec.
#pragma once

#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "membership/view.hpp"

namespace tokenyard::membership {

/// Ordered by round, then by leader; no two leaders share one.
struct Ballot {
  uint64_t round = 0;
  Slot leader = 0;
  auto operator<=>(const Ballot&) const = default;
};

/// "I live": sent to everybody, always.
struct Heartbeat {
  std::vector<Member> waiting = {};  ///< newcomers that have knocked at the sender
  std::vector<Slot> suspected = {};  ///< members that the sender does not hear
  bool wants_change = false;         ///< the sender has a reason to end the epoch
  bool recovers = false;             ///< the sender has put behind it what has failed
  bool drains = false;               ///< the sender leaves when its messages have been received
};
/// A newcomer would like to have its slot.
struct JoinRequest {};
/// The answer to a knock: nobody has asked for you yet, and these are the members.
struct NotYet {
  View view = {};
};
struct Prepare {
  Ballot ballot = {};
};
struct Promise {
  Ballot ballot = {};
  std::optional<Ballot> accepted_in = {};  ///< with `accepted`
  Verdict accepted = {};
  std::vector<GroupProgress> progress = {};
  std::vector<Slot> suspected = {};                 ///< whom the sender does not hear
  std::vector<TimeoutReport> timeout_reports = {};  ///< the sender's, ascending
  std::vector<Slot> admits = {};                    ///< slots that may be filled
  std::vector<Member> evicts = {};                  ///< members to be put out
  std::vector<Member> waiting = {};                 ///< newcomers that the sender knows of
  bool recovers = false;                            ///< as in heartbeats
};
struct Accept {
  Ballot ballot = {};
  Verdict verdict = {};
};
struct Accepted {
  Ballot ballot = {};
};
/// The sender has promised a higher ballot.
struct Refused {
  Ballot ballot = {}, promised = {};
};
struct Decide {
  Verdict verdict = {};
};
/// The sender leaves in good order, and commits nothing more.
struct Goodbye {
  std::vector<GroupProgress> progress = {};
};
/// To one who speaks in an epoch that is over, and is not a member of this one.
struct FencedOff {
  Epoch now = 0;
};

/// Every message carries the sender's epoch.
struct Message {
  Epoch epoch = 0;
  std::variant<Heartbeat, JoinRequest, NotYet, Prepare, Promise, Accept, Accepted, Refused, Decide,
               Goodbye, FencedOff>
      body;
};

}  // namespace tokenyard::membership
