// The leader's side: when a member stands for leader, and what a leader does.
#include <algorithm>

#include "membership/composition.hpp"
#include "membership/invariant.hpp"
#include "membership/membership.hpp"

namespace tokenyard::membership {
namespace {

/// How many times longer followers wait than the leader waits between two requests; up to
/// kTimeoutFactorMax where leaders keep overtaking one another.
constexpr uint32_t kTimeoutFactor = 2, kTimeoutFactorMax = 8;
/// A member that answers lives, though its engine may take long to freeze: the leader waits this
/// many silences for its promise.
constexpr int kFreezeTimeoutFactor = 10;
/// When a cut heals, not all peers are heard again at once. After this many heartbeats they are.
constexpr int kReunion = 2;
/// Leaders that overtook one another retry after different times; slots beyond this many share one.
constexpr int64_t kDifferentTimes = 8;
constexpr uint64_t kDoublings = 16;

}  // namespace

// ---- reasons to end the epoch -------------------------------------------------------------------

bool Membership::is_admission_due() const {
  if (options_.mutant == Mutant::admitted_unasked) return !join_queue_.all().empty();
  return std::any_of(admits_.begin(), admits_.end(),
                     [&](Slot slot) { return join_queue_.anybody_for(slot); });
}

/// A request that can never be fulfilled would end one epoch after another. The witness does not
/// count here: it is not asked where the members suffice.
bool Membership::may_spare_one() const {
  const Quorum quorum(view_, options_.witness, options_.mutant);
  return view_.members.size() > quorum.needed;
}

bool Membership::is_recovering_due() const {
  const auto& peers = roster_.peers();
  return recovering_ && std::all_of(peers.begin(), peers.end(), [](const Peer& peer) {
           return peer.recovers || !peer.answers();
         });
}

/// This member's own reasons only: were a reason repeated, members would keep one another saying
/// it.
bool Membership::has_reason() const {
  const auto& peers = roster_.peers();
  return leaving_ || highest_.round > 0 || !timeout_reports_.empty() || !evicts_.empty() ||
         is_admission_due() || is_recovering_due() ||
         std::any_of(peers.begin(), peers.end(),
                     [](const Peer& peer) { return !peer.is_heard() || peer.leaving; });
}

bool Membership::wants_change() const {
  const auto& peers = roster_.peers();
  return has_reason() || std::any_of(peers.begin(), peers.end(), [](const Peer& peer) {
           return peer.is_heard() && peer.wants_change;
         });
}

uint32_t Membership::answering() const {
  const auto& peers = roster_.peers();
  return 1 + static_cast<uint32_t>(std::count_if(peers.begin(), peers.end(),
                                                 [](const Peer& peer) { return peer.answers(); }));
}

bool Membership::can_lead() const {
  const Quorum quorum(view_, options_.witness, options_.mutant);
  return answering() + (quorum.witness && !witness_moved_on_ ? 1 : 0) >= quorum.needed;
}

/// Leaving members lead last: they have less reason to stay until the ballot is done. A member that
/// another one suspects, though it hears that one, gives it a head start: of two members, the one
/// that was asked to evict the other asks the witness first.
Instant Membership::lead_at() const {
  uint32_t before = 0;
  bool suspected = false;
  for (const Peer& peer : roster_.peers()) {
    if (peer.answers() &&
        std::pair(peer.leaving, peer.member.slot) < std::pair(leaving_, self_.slot))
      ++before;
    suspected |= peer.is_heard() && peer.deaf;
  }
  if (suspected) ++before;
  Instant at = std::max(stirred_ + options_.ballot * before, patient_until_);
  if (gave_way_) {
    // Two leaders that do not hear each other may both reach the acceptor that decides. Each waits
    // longer after every defeat, and by its own factor, so they do not collide forever.
    const auto place =
        std::count_if(view_.members.begin(), view_.members.end(),
                      [&](const Member& member) { return member.slot < self_.slot; });
    const auto doubled = options_.ballot * (uint64_t{1} << std::min(highest_.round, kDoublings));
    at += std::min<Instant>(doubled, options_.silence) * (4 + place % kDifferentTimes) / 4;
  }
  if (!leader_ || *leader_ == self_.slot) return at;
  if (options_.mutant == Mutant::leaders_never_replaced) return Instant::max();
  const Peer* const leader = roster_.at(*leader_);
  if (leader == nullptr || !leader->answers()) return at;
  const uint64_t longer = std::min<uint64_t>(kTimeoutFactor * highest_.round, kTimeoutFactorMax);
  return at + options_.ballot * longer;
}

void Membership::settle(Instant now) {
  if (standing_ != Standing::member) return;
  const bool wants = wants_change();
  if (wants && !wanted_) stir(now);
  wanted_ = wants;
  const bool reason = has_reason();
  if (reason && !published_) beat(now);
  published_ = reason;

  if (leaving_ && is_frozen()) {
    const auto& peers = roster_.peers();
    if (std::all_of(peers.begin(), peers.end(),
                    [](const Peer& peer) { return peer.leaving || !peer.answers(); })) {
      standing_ = Standing::left;
      effects_.emplace_back(Left{});
      return;
    }
  }
  const bool able = can_lead();
  if (able && !was_able_) patient_until_ = now + kReunion * options_.heartbeat;
  was_able_ = able;
  if (candidacy_.active())
    advance(now);
  else if (wants && able && now >= lead_at())
    stand(now);
  if (standing_ == Standing::member) report_quorum();
}

void Membership::report_quorum() {
  const Quorum quorum(view_, options_.witness, options_.mutant);
  std::vector<Slot> answering = {self_.slot};
  for (const Peer& peer : roster_.peers()) {
    if (peer.answers()) answering.push_back(peer.member.slot);
  }
  std::sort(answering.begin(), answering.end());
  const bool missing = !can_lead() || (candidacy_.active() && candidacy_.stuck);
  if (missing == missing_.has_value() && (!missing || *missing_ == answering)) return;
  effects_.emplace_back(QuorumMissing{answering, quorum.needed});
  missing_.reset();
  if (missing) missing_ = std::move(answering);
}

// ---- a ballot -----------------------------------------------------------------------------------

void Membership::stand(Instant now) {
  const Ballot ballot{highest_.round + 1, self_.slot};
  invariant(ballot > acceptor_.promised, "a new ballot is higher than any that was promised");
  candidacy_ = {.phase = Candidacy::Phase::preparing, .ballot = ballot, .begun = now, .asked = now};
  highest_ = ballot;
  leader_ = self_.slot;
  gave_way_ = false;
  invariant(acceptor_.prepare(ballot), "a member refused its own ballot");
  send_to_all(Prepare{ballot});
  if (is_frozen())
    give_promise();
  else
    freeze();
  advance(now);
}

void Membership::give_way(Ballot higher, Instant now) {
  candidacy_ = {};
  gave_way_ = true;
  highest_ = std::max(highest_, higher);
  leader_ = higher.leader;
  stir(now);
}

/// Waits for every member that answers, unless it is heard and fails to promise for too long. Does
/// not wait for one that another member has abandoned, though this one may not suspect it yet.
///
/// A leader that leaves also waits, for one silence, for members that say they do not hear it: they
/// may have abandoned it because it leaves. It counts towards the quorum, so without this wait a
/// minority could go on without a healthy member. A member that is truly deaf leads meanwhile.
bool Membership::awaits_promises(Instant now) const {
  if (!candidacy_.promises.contains(self_.slot)) return true;
  const Instant waited = now - candidacy_.begun;
  if (waited > options_.silence * kFreezeTimeoutFactor) return false;
  if (options_.mutant == Mutant::quorum_is_enough) return false;
  const bool waits_for_deaf = leaving_ && waited <= options_.silence;
  const auto& peers = roster_.peers();
  return std::any_of(peers.begin(), peers.end(), [&](const Peer& peer) {
    return (waits_for_deaf ? peer.is_heard() : peer.answers()) && !peer.leaving &&
           !candidacy_.promises.contains(peer.member.slot) && !candidacy_.is_abandoned(peer.member);
  });
}

void Membership::advance(Instant now) {
  const Quorum quorum(view_, options_.witness, options_.mutant);
  candidacy_.stuck = false;
  if (candidacy_.phase == Candidacy::Phase::accepting) {
    if (candidacy_.voted() >= quorum.needed || options_.mutant == Mutant::decided_without_votes)
      return decide(now);
    candidacy_.stuck = !can_lead();
    return;
  }
  if (awaits_promises(now)) return;
  std::optional<Verdict> verdict;
  if (candidacy_.promised() >= quorum.needed) {
    const Verdict* const adopted = candidacy_.adopted();
    if (adopted != nullptr && options_.mutant != Mutant::adopted_value_ignored) {
      verdict = *adopted;
    } else {
      std::set<Slot> leaving;
      for (const Peer& peer : roster_.peers()) {
        if (peer.leaving) leaving.insert(peer.member.slot);
      }
      if (leaving_) leaving.insert(self_.slot);
      verdict = compose({.view = view_,
                         .last = last_,
                         .promises = candidacy_.promises,
                         .leaving = leaving,
                         .quorum = quorum,
                         .witness_promised = candidacy_.witness_promise.has_value(),
                         .evict_stalled = options_.evict_stalled,
                         .mutant = options_.mutant});
    }
  }
  if (verdict) return propose(std::move(*verdict), now);
  if (quorum.witness && !candidacy_.witness_promise) {
    ask_witness(now);
    // The witness's answer may take a moment.
    candidacy_.stuck = now - candidacy_.witness_asked.value_or(now) > options_.ballot;
  } else {
    candidacy_.stuck = true;
  }
}

void Membership::propose(Verdict verdict, Instant now) {
  invariant(verdict.next.epoch == view_.epoch + 1, "a verdict must end this epoch");
  candidacy_.phase = Candidacy::Phase::accepting;
  candidacy_.proposal = std::move(verdict);
  candidacy_.asked = now;
  candidacy_.witness_asked.reset();
  invariant(acceptor_.accept(candidacy_.ballot, candidacy_.proposal, options_.mutant),
            "a leader went on after it promised a higher ballot");
  candidacy_.votes = {self_.slot};
  send_to_all(Accept{candidacy_.ballot, candidacy_.proposal});
  if (candidacy_.witness_promise) ask_witness(now);
  advance(now);
}

void Membership::decide(Instant now) {
  const Verdict verdict = candidacy_.proposal;
  send_to_all(Decide{verdict});
  for (const Member& member : verdict.next.members) {
    if (!view_.contains(member) && member != self_) send(member, Decide{verdict});
  }
  learn(verdict, now);
}

void Membership::ask_again(Instant now) {
  // Members that have answered are asked too: they learn that a leader is active, and their new
  // promises say whom they hear by now.
  const bool preparing = candidacy_.phase == Candidacy::Phase::preparing;
  candidacy_.asked = now;
  if (preparing)
    send_to_all(Prepare{candidacy_.ballot});
  else
    send_to_all(Accept{candidacy_.ballot, candidacy_.proposal});
  if (preparing && is_frozen()) give_promise();
  const Quorum quorum(view_, options_.witness, options_.mutant);
  if (!preparing && quorum.witness && !candidacy_.witness_voted) ask_witness(now);
}

// ---- answers to a leader ------------------------------------------------------------------------

void Membership::on_message(Peer& from, const Promise& body, Instant) {
  if (candidacy_.phase != Candidacy::Phase::preparing || body.ballot != candidacy_.ballot) return;
  Promise& promise = candidacy_.promises[from.member.slot] = body;
  // Members that came later do not know who was a member before.
  std::erase_if(promise.waiting,
                [&](const Member& newcomer) { return join_queue_.was_member(newcomer); });
}

void Membership::on_message(Peer& from, const Accepted& body, Instant) {
  if (candidacy_.phase != Candidacy::Phase::accepting || body.ballot != candidacy_.ballot) return;
  candidacy_.votes.insert(from.member.slot);
}

void Membership::on_message(Peer&, const Refused& body, Instant now) {
  if (candidacy_.active() && body.ballot == candidacy_.ballot && body.promised > body.ballot)
    give_way(body.promised, now);
}

void Membership::ask_witness(Instant now) {
  if (options_.mutant == Mutant::witness_not_asked) {
    const bool promised = candidacy_.witness_promise.has_value();
    candidacy_.witness_promise = Promise{.ballot = candidacy_.ballot};
    candidacy_.witness_asked = now;
    candidacy_.witness_voted = candidacy_.phase == Candidacy::Phase::accepting;
    if (!promised) advance(now);
    return;
  }
  // A slow witness is not asked over and over.
  if (candidacy_.witness_asked && now - *candidacy_.witness_asked < options_.silence) return;
  candidacy_.witness_asked = now;
  Message question{view_.epoch, Prepare{candidacy_.ballot}};
  if (candidacy_.phase == Candidacy::Phase::accepting)
    question.body = Accept{candidacy_.ballot, candidacy_.proposal};
  effects_.emplace_back(AskWitness{std::move(question)});
}

void Membership::witness_replied(const Message& message, Instant now) {
  if (standing_ != Standing::member || message.epoch != view_.epoch) return;
  const Candidacy::Phase phase = candidacy_.phase;
  if (std::holds_alternative<FencedOff>(message.body)) {
    // Others are in a later epoch. They will tell whether this member is in it.
    witness_moved_on_ = true;
  } else if (const auto* promise = std::get_if<Promise>(&message.body)) {
    if (phase == Candidacy::Phase::preparing && promise->ballot == candidacy_.ballot)
      candidacy_.witness_promise = *promise;
  } else if (const auto* accepted = std::get_if<Accepted>(&message.body)) {
    if (phase == Candidacy::Phase::accepting && accepted->ballot == candidacy_.ballot)
      candidacy_.witness_voted = true;
  } else if (const auto* refused = std::get_if<Refused>(&message.body)) {
    if (candidacy_.active() && refused->ballot == candidacy_.ballot)
      give_way(refused->promised, now);
  }
  settle(now);
}

}  // namespace tokenyard::membership
