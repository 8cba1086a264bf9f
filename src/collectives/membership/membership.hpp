/// Agreement on who belongs to the job and which operations have happened: a state machine of
/// messages and time, without threads, sockets or clocks, so that a simulator can drive it through
/// millions of disasters and control/ through real ones.
///
/// One consensus (single-decree Paxos) an epoch; its acceptors are the members of that epoch, and
/// where their number is even, a witness besides, so that an exact half of them can go on if the
/// witness sides with it:
///
///     leader                     members (and the witness)
///     prepare(ballot)   ---->    freeze: commit nothing more in this epoch
///                       <----    promise(ballot, what they accepted, progress, suspicions)
///     accept(verdict)   ---->
///                       <----    accepted
///     decide(verdict)   ---->    install it; the next epoch begins
///
/// Invariant: an operation that one member of the next view has committed is complete on all of
/// them (engine/commit), so `committed` = the largest number among the promises of its members.
/// Invariant: nothing of an older epoch is accepted; who speaks in one is told that it is fenced.
#pragma once

#include <chrono>
#include <cstddef>
#include <map>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "collectives/membership/message.hpp"
#include "collectives/membership/view.hpp"

namespace tokenyard::collectives {

/// Since the start of the process, or of the simulation.
using Instant = std::chrono::nanoseconds;

struct MembershipOptions {
  std::chrono::nanoseconds heartbeat = std::chrono::milliseconds(100);
  std::chrono::nanoseconds silence = std::chrono::seconds(5);  ///< a silent member is suspected
  /// How long a leader waits for answers before it asks again, and by how much later each next
  /// member tries to lead when nobody does.
  std::chrono::nanoseconds ballot = std::chrono::milliseconds(150);
  bool witness = false;        ///< there is one
  bool evict_stalled = false;  ///< a rank that misses an operation's deadline is put out
};

/// What whoever drives the state machine has to do, in order.
struct Send {
  Member to;
  Message message;
};
/// Ask the witness; its reply comes back by `witness_replied`.
struct AskWitness {
  Message message;
};
/// Stop committing operations of this epoch, then call `frozen` with the progress so far.
struct Freeze {
  Epoch epoch;
};
struct Install {
  Verdict verdict;
};
/// This process is not a member any more. Final: nothing more comes out.
struct Fenced {
  Epoch epoch;
  std::string why;
};
/// The members that answer are too few to go on. May pass when others come back into sight: then
/// comes another one with as many as are needed, or Install.
struct QuorumMissing {
  std::vector<Slot> answering;
  uint32_t needed;
};
/// This process, which wanted to leave, may go: nobody counts on it any more. Final.
struct Left {};
using Effect = std::variant<Send, AskWitness, Freeze, Install, Fenced, QuorumMissing, Left>;

class Membership {
 public:
  /// `self` is a member of `first`, or a newcomer to be admitted into its slot (then `first` is the
  /// view that a member has told it of).
  Membership(Member self, View first, MembershipOptions options);

  const View& view() const;
  bool is_member() const;
  bool is_fenced() const;
  bool is_frozen() const;
  /// Newcomers that have knocked, and wait for somebody to admit them.
  std::vector<Member> waiting() const;

  void receive(const Member& from, const Message& message, Instant now);
  void witness_replied(const Message& message, Instant now);
  /// Evidence from outside: `reset` from links, `stall` from operations whose deadline has passed.
  /// `seen_in` is the epoch it was seen in: evidence against a slot's former process is dropped,
  /// and so is a stall in an epoch that is over.
  void suspect(Slot slot, Suspicion why, Epoch seen_in, Instant now);
  /// A newcomer has knocked, here or at another member.
  void knock(const Member& newcomer, Instant now);
  /// Let these slots be filled, or the job grow to `slots`, as soon as newcomers wait for them.
  void admit(const std::vector<Slot>& slots, Instant now);
  /// Go, in good order: the others are told, and need not find out.
  void leave(Instant now);
  /// The answer to Freeze.
  void frozen(std::vector<GroupProgress> progress, Instant now);
  void tick(Instant now);
  /// When `tick` wants to be called at the latest.
  Instant next_tick() const;

  std::vector<Effect> take_effects();
};

}  // namespace tokenyard::collectives
