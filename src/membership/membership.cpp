#include "membership/membership.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "membership/invariant.hpp"

namespace tokenyard::membership {
namespace {

/// Returns whether the view has this very process, not only its slot.
bool has(const View& view, const Member& member, Mutant mutant) {
  if (mutant == Mutant::old_incarnation_accepted) return view.at(member.slot).has_value();
  return view.contains(member);
}

/// Updates `into` by the commits that `from` knows.
void merge_commits(std::vector<GroupProgress>& into, const std::vector<GroupProgress>& from) {
  for (const GroupProgress& published : from) {
    const auto place = std::lower_bound(
        into.begin(), into.end(), published,
        [](const GroupProgress& a, const GroupProgress& b) { return a.group < b.group; });
    if (place == into.end() || place->group != published.group)
      into.insert(place, published)->begun = 0;
    else {
      place->committed = std::max(place->committed, published.committed);
      place->stage = std::max(place->stage, published.stage);
    }
  }
}

}  // namespace

Membership::Membership(Member self, View first, MembershipOptions options)
    : self_(self),
      options_(options),
      standing_(first.contains(self) ? Standing::member : Standing::newcomer),
      view_(std::move(first)) {
  invariant(view_.epoch > 0, "the first view has an epoch");
  invariant(options_.heartbeat.count() > 0, "heartbeats have a period");
  invariant(options_.silence > 2 * options_.heartbeat, "a heartbeat may be late");
  invariant(options_.ballot.count() > 0, "leaders wait for answers");
  roster_.install(view_, self_, Instant{});
}

std::vector<Effect> Membership::take_effects() {
  return std::exchange(effects_, {});
}

void Membership::send(const Member& to, decltype(Message::body) body) {
  invariant(to != self_, "nobody sends to itself");
  effects_.emplace_back(Send{to, {view_.epoch, std::move(body)}});
}

void Membership::send_to_all(const decltype(Message::body)& body) {
  for (const Peer& peer : roster_.peers()) send(peer.member, body);
}

Heartbeat Membership::heartbeat() const {
  return {.waiting = join_queue_.all(true),
          .suspected = roster_.suspected(),
          .wants_change = has_reason(),
          .recovers = recovers(),
          .drains = draining_};
}

void Membership::beat(Instant now) {
  if (standing_ == Standing::member) send_to_all(heartbeat());
  if (standing_ == Standing::newcomer) send_to_all(JoinRequest{});
  next_beat_ = now + options_.heartbeat;
}

// ---- messages of others -------------------------------------------------------------------------

void Membership::receive(const Member& from, const Message& message, Instant now) {
  if (is_over() || from == self_) return;
  if (std::holds_alternative<JoinRequest>(message.body)) return request_join(from, now);
  if (const auto* body = std::get_if<Decide>(&message.body)) {
    learn(body->verdict, now);
  } else if (const auto* fenced = std::get_if<FencedOff>(&message.body)) {
    // Before admission, this is the answer to an older message and means nothing.
    if (fenced->now > view_.epoch || standing_ == Standing::newcomer)
      fence(fenced->now, fmt::format("the others are in epoch {} without it", fenced->now));
  } else if (standing_ == Standing::newcomer) {
    on_message_as_newcomer(from, message);
  } else if (speaks_in_this_epoch(from, message)) {
    Peer& peer = *roster_.at(from.slot);
    roster_.heard(peer, now);
    std::visit([&](const auto& body) { on_message(peer, body, now); }, message.body);
  }
  settle(now);
}

bool Membership::speaks_in_this_epoch(const Member& from, const Message& message) {
  const bool member = from.slot != self_.slot && has(view_, from, options_.mutant);
  if (message.epoch < view_.epoch && options_.mutant != Mutant::epoch_not_checked) {
    if (!member)
      send(from, FencedOff{view_.epoch});
    else if (last_.next.epoch == view_.epoch)
      send(from, Decide{last_});
    return false;
  }
  if (message.epoch > view_.epoch) {
    send(from, heartbeat());  // The sender sees who lags, and tells how this epoch ended.
    return false;
  }
  return member;
}

void Membership::on_message_as_newcomer(const Member& from, const Message& message) {
  if (const auto* body = std::get_if<NotYet>(&message.body)) {
    if (body->view.epoch <= view_.epoch) return;
    view_ = body->view;
    roster_.install(view_, self_, Instant{});
  } else {
    send(from, JoinRequest{});  // The sender counts this process as a member: it knows the verdict.
  }
}

void Membership::request_join(const Member& newcomer, Instant now) {
  if (standing_ != Standing::member || newcomer == self_ || newcomer.slot >= kSlotsMax) return;
  if (has(view_, newcomer, options_.mutant)) {
    if (last_.next.epoch == view_.epoch) send(newcomer, Decide{last_});
  } else if (join_queue_.was_member(newcomer)) {
    send(newcomer, FencedOff{view_.epoch});
  } else {
    join_queue_.requested(newcomer, now);
    send(newcomer, NotYet{view_});
  }
  settle(now);
}

void Membership::on_message(Peer& from, const Heartbeat& body, Instant now) {
  const bool deaf =
      std::find(body.suspected.begin(), body.suspected.end(), self_.slot) != body.suspected.end();
  if (deaf && !from.deaf) stir(now);
  from.deaf = deaf && options_.mutant != Mutant::suspicions_not_told;
  from.wants_change = body.wants_change;
  from.recovers = body.recovers;
  for (const Member& newcomer : body.waiting) {
    if (!view_.contains(newcomer)) join_queue_.published_of(newcomer, now);
  }
}

void Membership::on_message(Peer& from, const Prepare& body, Instant now) {
  if (body.ballot.leader != from.member.slot) return;  // nobody leads for another member
  if (!acceptor_.prepare(body.ballot)) {
    send(from.member, Refused{body.ballot, acceptor_.promised});
    return;
  }
  follow(body.ballot, now);
  if (is_frozen())
    give_promise();
  else
    freeze();
}

void Membership::on_message(Peer& from, const Accept& body, Instant now) {
  if (body.ballot.leader != from.member.slot) return;
  if (!acceptor_.accept(body.ballot, body.verdict, options_.mutant)) {
    send(from.member, Refused{body.ballot, acceptor_.promised});
    return;
  }
  follow(body.ballot, now);
  send(from.member, Accepted{body.ballot});
}

void Membership::on_message(Peer& from, const Goodbye& body, Instant now) {
  merge_commits(farewells_, body.progress);
  if (!from.leaving) stir(now);
  from.leaving = true;
  // An earlier promise lacks what the goodbye says, and the leader may not wait for another
  // promise: not for the leaving member's.
  const bool promised = is_frozen() && acceptor_.promised.round > 0;
  if (promised && options_.mutant != Mutant::goodbye_not_passed_on) give_promise();
}

// ---- promises -----------------------------------------------------------------------------------

void Membership::follow(Ballot ballot, Instant now) {
  if (candidacy_.active() && ballot > candidacy_.ballot) give_way(ballot, now);
  highest_ = std::max(highest_, ballot);
  leader_ = ballot.leader;
  stir(now);
}

void Membership::freeze() {
  if (std::exchange(freeze_asked_, true)) return;
  effects_.emplace_back(Freeze{view_.epoch});
}

void Membership::frozen(std::vector<GroupProgress> progress, Instant now) {
  if (is_over()) return;
  invariant(freeze_asked_, "it was frozen without a request");
  invariant(!is_frozen(), "it was frozen twice in one epoch");
  progress_ = std::move(progress);
  if (leaving_) send_to_all(Goodbye{*progress_});
  if (acceptor_.promised.round > 0) give_promise();
  settle(now);
}

void Membership::give_promise() {
  invariant(is_frozen(), "a member promised before it froze");
  Promise promise{.ballot = acceptor_.promised, .progress = *progress_};
  if (options_.mutant != Mutant::accepted_forgotten) {
    promise.accepted_in = acceptor_.accepted_in;
    promise.accepted = acceptor_.accepted;
  }
  merge_commits(promise.progress, farewells_);
  promise.suspected = roster_.suspected();
  promise.timeout_reports.assign(timeout_reports_.begin(), timeout_reports_.end());
  promise.admits.assign(admits_.begin(), admits_.end());
  promise.evicts.assign(evicts_.begin(), evicts_.end());
  promise.waiting = join_queue_.all();
  promise.recovers = recovers();
  const Slot leader = acceptor_.promised.leader;
  if (leader != self_.slot) {
    send(*view_.at(leader), std::move(promise));
  } else if (candidacy_.active() && candidacy_.ballot == promise.ballot) {
    candidacy_.promises[leader] = std::move(promise);
  }
}

// ---- end of an epoch ----------------------------------------------------------------------------

void Membership::learn(const Verdict& verdict, Instant now) {
  const View& next = verdict.next;
  if (next.epoch <= view_.epoch) return;  // a repeated message
  if (has(next, self_, options_.mutant)) {
    if (standing_ == Standing::newcomer || next.epoch == view_.epoch + 1) {
      install(verdict, now);
    } else {
      // It has missed an epoch: it was out in between, and was let in again because of an old join
      // request. Its work in the meantime is void.
      fence(next.epoch, "the others have gone on without it for an epoch");
    }
  } else if (standing_ == Standing::newcomer) {
    view_ = next;
    roster_.install(view_, self_, now);
  } else if (leaving_) {
    standing_ = Standing::left;
    effects_.emplace_back(Left{});
  } else {
    fence(next.epoch, fmt::format("slot {} is out since epoch {}", self_.slot, next.epoch));
  }
}

void Membership::install(const Verdict& verdict, Instant now) {
  invariant(standing_ == Standing::newcomer || is_frozen() ||
                options_.mutant == Mutant::unpromised_members_kept,
            "a member goes on without having promised");
  for (const Member& member : verdict.next.members) admits_.erase(member.slot);
  evicts_.clear();
  join_queue_.install(view_, verdict.next);
  view_ = verdict.next;
  last_ = verdict;
  roster_.install(view_, self_, now);
  const bool newcomer = standing_ == Standing::newcomer;
  if (newcomer) roster_.forgive(now);
  const bool calm = verdict.lost.empty() && !verdict.recovers;
  nothing_behind_ = newcomer || (nothing_behind_ && calm);
  standing_ = Standing::member;
  acceptor_ = {};
  freeze_asked_ = false;
  progress_.reset();
  farewells_.clear();
  timeout_reports_.clear();
  candidacy_ = {};
  leader_.reset();
  highest_ = {};
  gave_way_ = witness_moved_on_ = wanted_ = published_ = false;
  was_able_ = true;
  missing_.reset();
  stir(now);
  effects_.emplace_back(Install{verdict});
  if (verdict.recovers) recovering_ = false;
  if (recovers()) next_beat_ = now;  // each epoch must hear it anew
  if (leaving_) freeze();
}

void Membership::fence(Epoch epoch, std::string why) {
  standing_ = Standing::fenced;
  effects_.emplace_back(Fenced{epoch, std::move(why)});
}

// ---- calls from outside -------------------------------------------------------------------------

void Membership::suspect(Slot slot, Suspicion why, Epoch seen_in, Instant now) {
  Peer* const peer = roster_.at(slot);
  if (standing_ != Standing::member || peer == nullptr || seen_in < peer->since) return;
  switch (why) {
    case Suspicion::reset:
      peer->reset = true;
      break;
    case Suspicion::silence:
      peer->silent = true;
      break;
  }
  stir(now);
  settle(now);
}

void Membership::report_timeout(const TimeoutReport& timeout_report, Epoch seen_in, Instant now) {
  if (standing_ != Standing::member || roster_.at(timeout_report.slot) == nullptr) return;
  if (seen_in != view_.epoch) return;
  timeout_reports_.insert(timeout_report);
  stir(now);
  settle(now);
}

void Membership::admit(const std::vector<Slot>& slots, Epoch seen_in, Instant now) {
  for (const Slot slot : slots) {
    const Peer* const peer = roster_.at(slot);
    const bool filled = peer != nullptr && peer->since > seen_in;
    if (filled && options_.mutant != Mutant::wishes_never_late) continue;
    if (peer == nullptr || may_spare_one()) admits_.insert(slot);
  }
  settle(now);
}

void Membership::withdraw(const std::vector<Slot>& slots) {
  for (const Slot slot : slots) admits_.erase(slot);
}

void Membership::evict(const Member& member, Instant now) {
  if (member == self_ || !view_.contains(member)) return;
  // If the member is suspected, the rest are asked first; and if they are too few, the witness.
  const Quorum quorum(view_, options_.witness, options_.mutant);
  const bool witness_counts = quorum.witness && !roster_.at(member.slot)->is_heard();
  if (!may_spare_one() && !witness_counts) return;
  evicts_.insert(member);
  settle(now);
}

void Membership::recover(bool wanted, Instant now) {
  recovering_ = wanted;
  if (standing_ == Standing::member) beat(now);
  settle(now);
}

std::vector<Slot> Membership::recovers_late() const {
  std::vector<Slot> late;
  for (const Peer& peer : roster_.peers()) {
    if (recovering_ && !peer.recovers) late.push_back(peer.member.slot);
  }
  return late;
}

void Membership::drain(Instant now) {
  draining_ = true;
  if (standing_ == Standing::member) beat(now);
}

void Membership::leave(Instant now) {
  if (is_over() || std::exchange(leaving_, true)) return;
  if (standing_ == Standing::newcomer) {
    standing_ = Standing::left;
    effects_.emplace_back(Left{});
    return;
  }
  if (is_frozen())
    send_to_all(Goodbye{*progress_});
  else
    freeze();
  settle(now);
}

void Membership::tick(Instant now) {
  if (is_over()) return;
  // After a long absence (a debugger, SIGSTOP) it was this process that did not listen.
  if (!ticked_ || now - *ticked_ > options_.silence / 2) roster_.forgive(now);
  ticked_ = now;
  join_queue_.forget_older_than(now - options_.silence);
  if (standing_ == Standing::member && roster_.notice_silence(now, options_.silence)) stir(now);
  if (now >= next_beat_) beat(now);
  if (candidacy_.active() && can_lead() && now >= candidacy_.asked + options_.ballot)
    ask_again(now);
  settle(now);
}

Instant Membership::next_tick() const {
  if (is_over()) return Instant::max();
  Instant next = next_beat_;
  if (standing_ != Standing::member || !can_lead()) return next;
  if (candidacy_.active())
    next = std::min(next, candidacy_.asked + options_.ballot);
  else if (wants_change())
    next = std::min(next, lead_at());
  return next;
}

}  // namespace tokenyard::membership
