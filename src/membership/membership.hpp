/// Agreement on the members of a job and on the operations that have happened. A pure state machine
/// of messages and time, without threads, sockets or clocks: a simulator drives it through millions
/// of failures, `control` through real ones.
///
/// Each epoch is one instance of single-decree Paxos. Its acceptors are the members of that epoch
/// and, where their number is even, a witness, so that exactly half of the members can go on if the
/// witness votes with them.
///
///     leader                     members (and the witness)
///     prepare(ballot)   ---->    freeze: commit nothing more in this epoch
///                       <----    promise(ballot, what they accepted, progress, suspicions)
///     accept(verdict)   ---->
///                       <----    accepted
///     decide(verdict)   ---->    install it; the next epoch begins
///
/// A member with a reason to end the epoch says so in its heartbeats. The first member that answers
/// leads; if it does not, the others try in the order of their slots, each a little later. A leader
/// waits for every member that answers, so that haste leaves nobody behind, and then for a quorum.
///
/// Invariant: an epoch ends with one verdict. Any two quorums share an acceptor (quorum.hpp), whose
/// promise reports the verdict that it has accepted; a leader must propose the one accepted in the
/// highest ballot (Candidacy::adopted).
///
/// Invariant: every member of the next view that was in this one has promised, so it is frozen
/// until it installs that view. `compose` keeps nobody else.
///
/// Invariant: a verdict commits every operation that any member has committed. An operation commits
/// only when its data are complete on its whole group (engine/call.hpp), so `committed` is the
/// largest number among the promises, and every survivor can honour it. A leaving member states its
/// own number in its goodbye and is not asked to promise; each member that hears the goodbye
/// promises again with that number included.
///
/// Invariant: a failure belongs to the epoch that agreed on it. Members ask to put failures behind
/// them (`recover`); once all have asked, a recovering epoch begins, and no failure from before it
/// can fail an operation called in it. Newcomers have nothing behind them and need not ask until
/// ranks are lost or an epoch recovers.
///
/// Invariant: a request names what its caller has seen: a slot to fill names the epoch it was seen
/// in, a process to evict its incarnation. So a late request cannot hit the process that has
/// arrived since.
///
/// Invariant: a member that waited for another one that is evicted or lost is not evicted for that
/// (compose, Verdict::excused). A failed wait can only name a rank that has not come, which may be
/// a healthy one that waits for the dead one.
///
/// Invariant: a member is at most one epoch behind, since it must promise in an epoch to be in the
/// next.
///
/// Invariant: nothing from an older epoch is accepted. Its sender is told how that epoch ended or,
/// if it is no longer a member, that it is fenced.
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
  std::chrono::nanoseconds silence = std::chrono::seconds(5);  ///< until a member is suspected
  /// How long a leader waits for answers before it asks again, and the delay between one member's
  /// turn to lead and the next one's.
  std::chrono::nanoseconds ballot = std::chrono::milliseconds(150);
  bool witness = false;        ///< the job has a witness
  bool evict_stalled = false;  ///< evict ranks that miss an operation's deadline
  Mutant mutant = Mutant::none;
};

// Effects: what the caller has to do, in order.
struct Send {
  Member to;
  Message message;
};
/// Ask the witness, and pass its reply to `witness_replied`. Supersedes earlier questions.
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
/// This process is no longer a member. Final: no effect follows.
struct Fenced {
  Epoch epoch;
  std::string why;
};
/// Too few members answer for the epoch to end. Passes when others can be heard again: then comes
/// another QuorumMissing with enough of them, or Install.
struct QuorumMissing {
  std::vector<Slot> answering;
  uint32_t needed;
};
/// This process asked to leave and may go: no member counts on it. Final.
struct Left {};
using Effect = std::variant<Send, AskWitness, Freeze, Install, Fenced, QuorumMissing, Left>;

class Membership {
 public:
  /// `self` is a member of `first`, or a newcomer that asks for its slot (then `first` is the view
  /// that a member has sent it).
  Membership(Member self, View first, MembershipOptions options);

  const View& view() const { return view_; }
  bool is_member() const { return standing_ == Standing::member; }
  bool is_fenced() const { return standing_ == Standing::fenced; }
  bool is_frozen() const { return progress_.has_value(); }
  /// Returns the newcomers that have asked to join and are not admitted yet.
  std::vector<Member> waiting() const { return join_queue_.all(); }

  void receive(const Member& from, const Message& message, Instant now);
  void witness_replied(const Message& message, Instant now);
  /// Takes evidence from links. `seen_in`: epoch of the observation, so that evidence against a
  /// slot's former process is dropped.
  void suspect(Slot slot, Suspicion why, Epoch seen_in, Instant now);
  /// Reports that an operation's deadline has passed. Ignored if `seen_in` is over.
  void report_timeout(const TimeoutReport& timeout_report, Epoch seen_in, Instant now);
  /// A newcomer has asked to join, here or at another member.
  void request_join(const Member& newcomer, Instant now);
  /// Allows newcomers to fill these slots as soon as they ask; slots beyond the end of the job make
  /// it grow. A slot that was filled after epoch `seen_in` needs nothing more. A process that still
  /// holds one of the slots yields it, unless too few members would remain. That request lasts
  /// until the epoch ends; requests for empty slots last until fulfilled or withdrawn.
  void admit(const std::vector<Slot>& slots, Epoch seen_in, Instant now);
  void withdraw(const std::vector<Slot>& slots);
  /// Evicts this process, unless too few members would remain. The witness counts as one of them
  /// if the process is suspected. Lasts until the epoch ends.
  void evict(const Member& member, Instant now);
  /// Asks to put all failures so far behind this member. The first epoch that begins after every
  /// member has asked recovers. The request is repeated until then, or until `wanted` is false.
  void recover(bool wanted, Instant now);
  /// Returns the members that have not asked to recover in this epoch; empty if this one has not.
  std::vector<Slot> recovers_late() const;
  /// Announces, in every heartbeat, that this member leaves once its messages have been received.
  void drain(Instant now);
  /// Leaves in good order: tells the others, so that they need not find out. Ends with Left.
  void leave(Instant now);
  /// Answers Freeze.
  void frozen(std::vector<GroupProgress> progress, Instant now);
  void tick(Instant now);
  /// Returns the latest time at which to call `tick`.
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
  /// Messages that newcomers and members of other epochs send too; handled elsewhere.
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

  // Reasons to end the epoch, and what follows (membership_leading.cpp).
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
  /// Restarts the delays of members that would lead later: the situation has changed.
  void stir(Instant now) { stirred_ = now; }

  const Member self_;
  const MembershipOptions options_;
  Standing standing_;
  View view_;
  Verdict last_;  ///< how the previous epoch ended; empty in the first
  Roster roster_;
  JoinQueue join_queue_;
  std::set<Slot> admits_;
  std::set<Member> evicts_;
  bool draining_ = false, leaving_ = false;
  bool recovering_ = false;      ///< asked to recover, until an epoch does
  bool nothing_behind_ = false;  ///< a newcomer that no failure has touched yet

  // State of this epoch.
  Acceptor acceptor_;
  bool freeze_asked_ = false;
  std::optional<std::vector<GroupProgress>> progress_;  ///< since this member is frozen
  std::vector<GroupProgress> farewells_;                ///< progress of members that have left
  std::set<TimeoutReport> timeout_reports_;             ///< this member's own
  Candidacy candidacy_;
  std::optional<Slot> leader_;     ///< leader of the highest ballot seen
  Ballot highest_;                 ///< highest ballot seen, in a refusal too
  bool gave_way_ = false;          ///< a higher ballot overtook this member's own
  bool witness_moved_on_ = false;  ///< the witness knows of a later epoch

  /// Values of wants_change, has_reason and can_lead at the last `settle`.
  bool wanted_ = false, published_ = false, was_able_ = true;
  Instant patient_until_{};  ///< until then, other members may become audible again
  std::optional<std::vector<Slot>> missing_;
  Instant stirred_{}, next_beat_{};
  std::optional<Instant> ticked_;
  std::vector<Effect> effects_;
};

}  // namespace tokenyard::membership
