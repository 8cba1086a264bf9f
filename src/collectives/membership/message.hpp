/// What members say to one another about the membership. Pure: structs here, bytes in the codec.
#pragma once

#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "collectives/membership/view.hpp"

namespace tokenyard::collectives {

/// Ordered by round, then by leader; no two leaders share one.
struct Ballot {
  uint64_t round = 0;
  Slot leader = 0;
  auto operator<=>(const Ballot&) const = default;
};

/// "I live": sent to everybody, always.
struct Heartbeat {
  std::vector<Member> waiting;  ///< newcomers that have knocked at the sender
};
struct Prepare {
  Ballot ballot;
};
struct Promise {
  Ballot ballot;
  std::optional<Ballot> accepted_in;  ///< with `accepted`
  Verdict accepted;
  std::vector<GroupProgress> progress;
  std::vector<Slot> suspected;
  std::vector<Slot> admits;  ///< slots that may be filled
};
struct Accept {
  Ballot ballot;
  Verdict verdict;
};
struct Accepted {
  Ballot ballot;
};
/// The sender has promised a higher ballot.
struct Refused {
  Ballot ballot, promised;
};
struct Decide {
  Verdict verdict;
};
struct Goodbye {};
/// To one who speaks in an epoch that is over, and is not a member of this one.
struct FencedOff {
  Epoch now;
};

/// Every message carries the sender's epoch.
struct Message {
  Epoch epoch = 0;
  std::variant<Heartbeat, Prepare, Promise, Accept, Accepted, Refused, Decide, Goodbye, FencedOff>
      body;
};

}  // namespace tokenyard::collectives
