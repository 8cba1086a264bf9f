/// Agreement on who belongs to the job and which operations have happened: a state machine of
/// messages and time, without threads, sockets or clocks, so that a simulator can drive it through
/// millions of disasters and control through real ones.
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
/// Whoever has a reason to end the epoch says so in its heartbeats. The first of the members that
/// answer leads; the next ones follow by their place, each a little later, if it does not. A leader
/// waits for all who answer, so that nobody is left behind in haste, and then for a quorum.
///
/// Invariant: who is in the next view has promised, so it is frozen until that view is installed.
/// Invariant: an operation that one member has committed is complete on all of its group
/// (engine/commit), so `committed` = the largest number among the promises. Who leaves says its own
/// in its goodbye, and is not asked to promise: whoever hears it promises once more, with that.
/// Invariant: a failure is known in the epoch in which it was agreed on. Members ask to put
/// failures behind them (`recover`), and once all have, an epoch begins that mends: what failed
/// before it cannot be told to anybody in it, so no operation that is called in it fails for that.
/// Newcomers have nothing behind them, and are not asked, until ranks are lost or an epoch mends.
/// Invariant: a wish names what its caller has seen: a slot to be filled says since which epoch, a
/// process to be evicted says which one. So a wish that comes late does not touch the process that
/// has come meanwhile.
/// Invariant: a member is at most one epoch behind, since it must promise to be in the next but
/// one. Invariant: nothing of an older epoch is accepted; who speaks in one is told how it ended,
/// or that it is fenced.
#pragma once

#include <chrono>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "membership/acceptor.hpp"
#include "membership/candidacy.hpp"
#include "membership/join_queue.hpp"
#include "membership/message.hpp"
#include "membership/mutant.hpp"
#include "membership/quorum.hpp"
#include "membership/roster.hpp"
#include "membership/view.hpp"

namespace tokenyard::membership {

struct MembershipOptions {
  std::chrono::nanoseconds heartbeat = std::chrono::milliseconds(100);
  std::chrono::nanoseconds silence = std::chrono::seconds(5);  ///< a silent member is suspected
  /// How long a leader waits for answers before it asks again, and by how much later each next
  /// member tries to lead when nobody does.
  std::chrono::nanoseconds ballot = std::chrono::milliseconds(150);
  bool witness = false;        ///< there is one
  bool evict_stalled = false;  ///< a rank that misses an operation's deadline is put out
  Mutant mutant = Mutant::none;
};

/// What whoever drives the state machine has to do, in order.
struct Send {
  Member to;
  Message message;
};
/// Ask the witness; its reply comes back by `witness_replied`. Makes earlier questions void.
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

  const View& view() const { return view_; }
  bool is_member() const { return standing_ == Standing::member; }
  bool is_fenced() const { return standing_ == Standing::fenced; }
  bool is_frozen() const { return progress_.has_value(); }
  /// Newcomers that have knocked, and wait for somebody to admit them.
  std::vector<Member> waiting() const { return join_queue_.all(); }

  void receive(const Member& from, const Message& message, Instant now);
  void witness_replied(const Message& message, Instant now);
  /// Evidence from links. `seen_in` is the epoch it was seen in: evidence against a slot's former
  /// process is dropped.
  void suspect(Slot slot, Suspicion why, Epoch seen_in, Instant now);
  /// An operation's deadline has passed; what passed in an epoch that is over counts no more.
  void report_timeout(const TimeoutReport& timeout_report, Epoch seen_in, Instant now);
  /// A newcomer has knocked, here or at another member.
  void request_join(const Member& newcomer, Instant now);
  /// Let these slots be filled as soon as newcomers wait for them; the job grows where they lie
  /// beyond its end. A slot that was filled after epoch `seen_in` is as wished already. A process
  /// that still holds one of them makes way, unless too few would remain; that wish lasts until the
  /// epoch ends, others until they come true or are withdrawn.
  void admit(const std::vector<Slot>& slots, Epoch seen_in, Instant now);
  void withdraw(const std::vector<Slot>& slots);
  /// Puts this process out, unless too few would remain. Lasts until the epoch ends.
  void evict(const Member& member, Instant now);
  /// Puts behind this member all that has failed, together with all the others: the first epoch
  /// that begins after every member has said this mends. Until then it is said on and on, or until
  /// `wanted` is false.
  void recover(bool wanted, Instant now);
  /// Members that have not said `recover` in this epoch. Empty if this one has not.
  std::vector<Slot> recovers_late() const;
  /// Tells the others, on and on, that it will leave when its messages have been received.
  void drain(Instant now);
  /// Go, in good order: the others are told, and need not find out. Ends in Left.
  void leave(Instant now);
  /// The answer to Freeze.
  void frozen(std::vector<GroupProgress> progress, Instant now);
  void tick(Instant now);
  /// When `tick` wants to be called at the latest.
  Instant next_tick() const;

  std::vector<Effect> take_effects();

 private:
  enum class Standing : uint8_t { newcomer, member, fenced, left };

  // Messages (membership.cpp).
  bool speaks_in_this_epoch(const Member& from, const Message& message);
  void on_message(Peer& from, const Heartbeat& body, Instant now);
  void on_message(Peer& from, const Prepare& body, Instant now);
  void on_message(Peer& from, const Promise& body, Instant now);
  void on_message(Peer& from, const Accept& body, Instant now);
  void on_message(Peer& from, const Accepted& body, Instant now);
  void on_message(Peer& from, const Refused& body, Instant now);
  void on_message(Peer& from, const Goodbye& body, Instant now);
  /// Those that members of other epochs say too, and newcomers: not heard this way.
  template <class Other>
  void on_message(Peer&, const Other&, Instant) {}
  void on_message_as_newcomer(const Member& from, const Message& message);
  void learn(const Verdict& verdict, Instant now);
  void install(const Verdict& verdict, Instant now);
  void fence(Epoch epoch, std::string why);

  // Promises (membership.cpp).
  void freeze();
  void give_promise();
  void follow(Ballot ballot, Instant now);

  // Reasons, and what follows from them (membership_leading.cpp).
  bool has_reason() const;
  bool wants_change() const;
  bool is_admission_due() const;
  bool is_recovering_due() const;
  bool may_spare_one() const;
  bool recovers() const { return recovering_ || nothing_behind_; }
  uint32_t answering() const;
  bool can_lead() const;
  Instant lead_at() const;
  void settle(Instant now);
  void report_quorum();

  // Leading (membership_leading.cpp).
  void stand(Instant now);
  void advance(Instant now);
  bool awaits_promises(Instant now) const;
  void propose(Verdict verdict, Instant now);
  void decide(Instant now);
  void ask_again(Instant now);
  void ask_witness(Instant now);
  void give_way(Ballot higher, Instant now);

  void send(const Member& to, decltype(Message::body) body);
  void send_to_all(const decltype(Message::body)& body);
  void beat(Instant now);
  Heartbeat heartbeat() const;
  bool is_over() const { return standing_ == Standing::fenced || standing_ == Standing::left; }
  /// Something has changed: who would lead after a while waits that while from now on.
  void stir(Instant now) { stirred_ = now; }

  const Member self_;
  const MembershipOptions options_;
  Standing standing_;
  View view_;
  Verdict last_;  ///< how the epoch before has ended; empty in the first
  Roster roster_;
  JoinQueue join_queue_;
  std::set<Slot> admits_;
  std::set<Member> evicts_;
  bool draining_ = false, leaving_ = false;
  bool recovering_ = false;      ///< until an epoch mends
  bool nothing_behind_ = false;  ///< a newcomer that nothing has happened to

  // Of this epoch.
  Acceptor acceptor_;
  bool freeze_asked_ = false;
  std::optional<std::vector<GroupProgress>> progress_;  ///< since it is frozen
  std::vector<GroupProgress> farewells_;                ///< progress of those who have left
  std::set<TimeoutReport> timeout_reports_;             ///< this member's own
  Candidacy candidacy_;
  std::optional<Slot> leader_;     ///< of the highest ballot seen
  Ballot highest_;                 ///< ballot seen, be it only in a refusal
  bool gave_way_ = false;          ///< this member's own ballot was overtaken
  bool witness_moved_on_ = false;  ///< it knows of a later epoch

  /// wants_change, has_reason and can_lead when they were last looked at.
  bool wanted_ = false, published_ = false, was_able_ = true;
  Instant patient_until_{};  ///< others may come back into sight until then
  std::optional<std::vector<Slot>> missing_;
  Instant stirred_{}, next_beat_{};
  std::optional<Instant> ticked_;
  std::vector<Effect> effects_;
};

}  // namespace tokenyard::membership
