/// Messages of the membership protocol: structs here, their encoding in message_codec.hpp.
#pragma once

#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "membership/view.hpp"

namespace tokenyard::membership {

/// Ordered by round, then by leader, so no two leaders share a ballot.
struct Ballot {
  uint64_t round = 0;
  Slot leader = 0;
  auto operator<=>(const Ballot&) const = default;
};

/// Sent to every member, periodically.
struct Heartbeat {
  std::vector<Member> waiting = {};  ///< newcomers that have asked the sender to join
  std::vector<Slot> suspected = {};  ///< members that the sender does not hear
  bool wants_change = false;         ///< the sender has a reason to end the epoch
  bool recovers = false;             ///< the sender has put all failures behind it
  bool drains = false;               ///< the sender leaves once its messages have been received
};
/// A newcomer asks for its slot.
struct JoinRequest {};
/// The answer to a JoinRequest: nobody has asked to fill the slot yet; these are the members.
struct NotYet {
  View view = {};
};
struct Prepare {
  Ballot ballot = {};
};
struct Promise {
  Ballot ballot = {};
  std::optional<Ballot> accepted_in = {};  ///< ballot in which `accepted` was accepted
  Verdict accepted = {};
  std::vector<GroupProgress> progress = {};
  std::vector<Slot> suspected = {};                 ///< members that the sender does not hear
  std::vector<TimeoutReport> timeout_reports = {};  ///< the sender's own, ascending
  std::vector<Slot> admits = {};                    ///< slots to fill
  std::vector<Member> evicts = {};                  ///< members to evict
  std::vector<Member> waiting = {};                 ///< newcomers known to the sender
  bool recovers = false;                            ///< as in Heartbeat
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
/// The sender leaves in good order and commits nothing more.
struct Goodbye {
  std::vector<GroupProgress> progress = {};
};
/// The answer to a non-member that speaks in an epoch that is over.
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
