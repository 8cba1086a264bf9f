#include "control/control_loop.hpp"

#include <algorithm>
#include <utility>

#include "base/fnv1a.hpp"
#include "membership/message_codec.hpp"
#include "net/key.hpp"

namespace tokenyard::control {

namespace {

net::Introduction introduction_of(const ControlOptions& options, const ControlEndpoint& own) {
  return {.purpose = net::Purpose::member,
          .job = fnv1a(net::as_bytes(options.job)),
          .self = {own.member.slot, own.member.incarnation},
          .epoch = 0,
          .sought = 0};
}

}  // namespace

ControlLoop::ControlLoop(asio::io_context& io, const ControlOptions& options, ControlEndpoint own,
                         const Log& log, StatusBoard& status_board, Inbox* inbox)
    : io_(io),
      options_(options),
      own_(std::move(own)),
      log_(log),
      status_board_(status_board),
      participant_([this](const std::string& why) {
        asio::post(io_, [this, why] { fail("its engine failed: " + why); });
      }),
      start_(std::chrono::steady_clock::now()),
      timer_(io),
      links_(io, net::Key(options.secret, "tokenyard control " + options.job), own_.address,
             introduction_of(options, own_), options.membership.silence, *this) {
  own_.port = links_.port();
  if (inbox != nullptr) exchange_.emplace(links_, *inbox);
}

void ControlLoop::open(Participant& participant, Contact contact, net::Purpose purpose) {
  participant_.serve(participant);
  own_.contact = std::move(contact);
  newcomer_ = purpose == net::Purpose::newcomer;
  links_.introduce_as(purpose, 0);
}

void ControlLoop::meet(const std::map<Member, ControlEndpoint>& endpoints) {
  acquaint_ = endpoints;
  choose_whom_to_dial();
}

void ControlLoop::set_witness(std::shared_ptr<Store> store, const std::string& key) {
  const auto replied = [this](const membership::Message& reply) {
    asio::post(io_, [this, reply] {
      if (!working()) return;
      membership_->witness_replied(reply, now());
      pump();
    });
  };
  witness_ = std::make_unique<WitnessClient>(std::move(store), key, replied);
}

void ControlLoop::begin(const View& first, const std::map<Member, ControlEndpoint>& endpoints) {
  for (const auto& [member, endpoint] : endpoints) learn(member, endpoint);
  become(first);
  install({.next = first, .groups = {}, .lost = {}, .left = {}});
  pump();
}

void ControlLoop::send(Slot to, Bytes message) {
  if (exchange_) exchange_->send(to, std::move(message));
}

void ControlLoop::report_timeout(const TimeoutReport& timeout_report, Epoch seen_in) {
  if (!working()) return;
  log(LogLevel::warning, "operation {} of group {:x} has waited for rank {} past its deadline",
      timeout_report.sequence, timeout_report.group, timeout_report.slot);
  membership_->report_timeout(timeout_report, seen_in, now());
  pump();
}

void ControlLoop::admit(const std::vector<Slot>& slots, Epoch seen_in) {
  if (!working()) return;
  log(LogLevel::debug, "asks to fill {}", fmt::join(slots, ", "));
  membership_->admit(slots, seen_in, now());
  pump();
}

void ControlLoop::withdraw(const std::vector<Slot>& slots) {
  if (working()) membership_->withdraw(slots);
}

void ControlLoop::evict(const Member& member) {
  if (!working()) return;
  log(LogLevel::info, "asks to evict rank {}", member.slot);
  membership_->evict(member, now());
  pump();
}

void ControlLoop::recover(bool wanted) {
  if (!working()) return;
  if (wanted) log(LogLevel::info, "asks to recover");
  membership_->recover(wanted, now());
  pump();
}

void ControlLoop::abandon(const Member& member, Epoch seen_in) {
  if (!working() || !membership_->view().contains(member)) return;
  if (membership_->view().epoch != seen_in) return;
  log(LogLevel::info, "asks to go on without rank {}", member.slot);
  // In this order: the witness counts where the member is suspected already.
  membership_->suspect(member.slot, Suspicion::silence, seen_in, now());
  membership_->evict(member, now());
  pump();
}

void ControlLoop::drain() {
  if (!working()) return;
  membership_->drain(now());
  pump();
}

void ControlLoop::leave() {
  const bool is_first = !std::exchange(leaving_, true);
  if (exchange_) exchange_->say_goodbye();
  if (!working()) {
    status_board_.write([](Standing& standing) { standing.left = true; });
    return;
  }
  if (is_first) log(LogLevel::info, "leaves");
  membership_->leave(now());
  pump();
}

void ControlLoop::hang_up() {
  over_ = true;
  timer_.cancel();
  links_.hang_up_on_all();
  // Polls, since several coroutines write the last messages.
  timer_.expires_after(std::chrono::milliseconds(1));
  timer_.async_wait([this](const asio::error_code&) {
    if (!links_.idle()) return hang_up();
    status_board_.write([](Standing& standing) { standing.silent = true; });
  });
}

void ControlLoop::fail(const std::string& why) {
  be_over(membership_ ? membership_->view().epoch : 0, why);
}

// Callbacks of the links
// --------------------------------------------------------------------------------

std::optional<Epoch> ControlLoop::fenced_since(const net::Introduction& who) const {
  if (!membership_ || who.purpose != net::Purpose::member) return std::nullopt;
  const View& view = membership_->view();
  // A process ahead of us may have been admitted in an epoch that we do not know yet.
  if (who.epoch >= view.epoch || view.contains(member_of(who))) return std::nullopt;
  return view.epoch;
}

void ControlLoop::linked(const Member& peer, net::Purpose purpose) {
  links_.send(peer, Topic::endpoint, encode(own_));
  for (const auto& [member, endpoint] : endpoints_) {
    if (member != peer) links_.send(peer, Topic::endpoint, encode(endpoint));
  }
  if (working() && purpose == net::Purpose::newcomer) publish_view(peer);
}

void ControlLoop::received(const Member& peer, Topic topic, std::span<const std::byte> bytes) {
  if (topic == Topic::endpoint) {
    if (const auto endpoint = decode_endpoint(bytes)) return learn(peer, *endpoint);
  } else if (topic == Topic::message) {
    if (const auto message = membership::decode_message(bytes)) return on_message(peer, *message);
  } else if (exchange_ && is_of_ranks(topic)) {
    if (!over_) exchange_->received(peer, topic, bytes);
    return;
  }
  turned_away(fmt::format("rank {}", peer.slot), "sent an invalid message");
}

void ControlLoop::lost(const Member& peer, const std::string& why) {
  status_board_.write([&](Standing& standing) {
    standing.linked.erase(peer);
    standing.ended.insert(peer);
  });
  const bool has_left = leavers_.contains(peer);
  if (!has_left) status_board_.count(&ControlCounters::links_lost);
  log(is_member(peer) && !has_left ? LogLevel::warning : LogLevel::info,
      "the connection to rank {} ended: {}", peer.slot, why);
  unreachable(peer, why);
  if (!is_member(peer)) return;
  membership_->suspect(peer.slot, Suspicion::reset, membership_->view().epoch, now());
  pump();
}

void ControlLoop::ended(const Member& peer) {
  if (exchange_ && !over_) exchange_->ended(peer);
}

void ControlLoop::unreachable(const Member& peer, const std::string& why) {
  log(LogLevel::debug, "no connection to rank {}: {}", peer.slot, why);
  if (!membership_) status_board_.write([&](Standing& now) { now.troubles[peer] = why; });
}

void ControlLoop::refused(const Member& by, Epoch since) {
  on_message(by, {.epoch = since, .body = membership::FencedOff{since}});
}

void ControlLoop::turned_away(const std::string& who, const std::string& why) {
  status_board_.count(&ControlCounters::links_refused);
  log(LogLevel::info, "refused {}: it {}", who, why);
}

// Messages and endpoints
// -------------------------------------------------------------------------------------

void ControlLoop::learn(const Member& from, const ControlEndpoint& endpoint) {
  if (endpoint.member == own_.member) return;
  if (endpoints_.size() >= kEndpointsMax) return links_.hang_up(from);
  if (endpoints_.emplace(endpoint.member, endpoint).second) {
    for (const Member& peer : links_.peers()) {
      if (peer != from && peer != endpoint.member)
        links_.send(peer, Topic::endpoint, encode(endpoint));
    }
    choose_whom_to_dial();
  }
  if (endpoint.member == from && links_.contains(from)) {
    bool is_new = false;  // The store may have told its endpoint, too.
    status_board_.write([&](Standing& standing) {
      is_new = standing.linked.insert_or_assign(from, endpoint.size).second;
    });
    if (!is_new) return;
    status_board_.count(&ControlCounters::links_made);
    log(LogLevel::info, "connected with rank {} at {}:{}", from.slot, endpoint.address,
        endpoint.port);
  }
}

void ControlLoop::on_message(const Member& from, const membership::Message& message) {
  if (over_) return;
  if (std::holds_alternative<membership::Goodbye>(message.body)) leavers_.insert(from);
  if (!membership_) {
    // A founder that reads the roster late misses a few messages of faster ones; they are repeated.
    const auto* not_yet = std::get_if<membership::NotYet>(&message.body);
    if (!newcomer_ || not_yet == nullptr) return;
    become(not_yet->view);
    choose_whom_to_dial();
    return pump();
  }
  wake();
  if (const auto* beat = std::get_if<membership::Heartbeat>(&message.body)) {
    note_heartbeat(from);
    if (beat->drains && membership_->is_member())
      participant_.post([](Participant& participant) { participant.attend(); });
  }
  membership_->receive(from, message, now());
  pump();
}

void ControlLoop::say(const Member& to, const membership::Message& message) {
  links_.send(to, Topic::message, encode(message));
}

/// Sends the view to a newcomer, which asks the members of the view that it knows. A process that
/// is in the view learns that from its verdict, which says more.
void ControlLoop::publish_view(const Member& newcomer) {
  const View& view = membership_->view();
  if (!view.contains(newcomer))
    say(newcomer, {.epoch = view.epoch, .body = membership::NotYet{view}});
}

// Effects of the membership
// ------------------------------------------------------------------------

void ControlLoop::become(const View& view) {
  membership_.emplace(own_.member, view, options_.membership);
  acquaint_.clear();
}

void ControlLoop::pump() {
  for (auto effects = membership_->take_effects(); !effects.empty() && !over_;
       effects = membership_->take_effects()) {
    for (const membership::Effect& effect : effects) {
      if (!over_) carry_out(effect);
    }
  }
  if (over_) return;
  log_newcomers();
  status_board_.write([&](Standing& standing) {
    standing.waiting = membership_->waiting();
    standing.recovers_late = membership_->recovers_late();
  });
  arm();
}

void ControlLoop::carry_out(const membership::Effect& effect) {
  struct Visitor {
    ControlLoop& loop;
    void operator()(const membership::Send& send) { loop.say(send.to, send.message); }
    void operator()(const membership::AskWitness& ask) {
      if (loop.witness_) loop.witness_->ask(ask.message);
    }
    void operator()(const membership::Freeze& freeze) { loop.freeze(freeze.epoch); }
    void operator()(const membership::Install& install) { loop.install(install.verdict); }
    void operator()(const membership::Fenced& fenced) { loop.be_over(fenced.epoch, fenced.why); }
    void operator()(const membership::QuorumMissing& missing) {
      loop.log_quorum(missing);
      loop.status_board_.write(
          [&](Standing& standing) { standing.alone = missing.answering.size() < missing.needed; });
      loop.participant_.post([missing](Participant& participant) {
        participant.quorum_missing(missing.answering, missing.needed);
      });
    }
    void operator()(const membership::Left&) {
      loop.status_board_.write([](Standing& standing) { standing.left = true; });
    }
  };
  std::visit(Visitor{*this}, effect);
}

void ControlLoop::freeze(Epoch epoch) {
  log(LogLevel::debug, "the epoch is about to end");
  participant_.post([this, epoch](Participant& participant) {
    asio::post(io_, [this, progress = participant.freeze(epoch)] {
      if (!working()) return;
      membership_->frozen(progress, now());
      pump();
    });
  });
}

void ControlLoop::install(const Verdict& verdict) {
  log_verdict(verdict);
  Contacts contacts;
  for (const Member& member : verdict.next.members) {
    const auto endpoint = endpoints_.find(member);
    if (member == own_.member) {
      contacts[member.slot] = own_.contact;
    } else if (endpoint != endpoints_.end()) {
      contacts[member.slot] = endpoint->second.contact;
    }
    // Otherwise the job was founded with a process whose endpoint was replaced in the store right
    // after: that founder has died.
  }
  status_board_.write([](Standing& standing) { standing.alone = false; });
  links_.introduce_as(net::Purpose::member, verdict.next.epoch);
  if (exchange_) exchange_->install(verdict.next);
  part_from_former_members(verdict);
  choose_whom_to_dial();
  forget_former_members(verdict.next);
  participant_.post([this, verdict, contacts = std::move(contacts)](Participant& participant) {
    participant.install(verdict, contacts);
    status_board_.write([&](Standing& standing) { standing.view = verdict.next; });
  });
  for (const Member& peer : links_.peers()) publish_view(peer);
}

void ControlLoop::part_from_former_members(const Verdict& verdict) {
  for (const Member& peer : installed_.members) {
    if (verdict.next.contains(peer)) continue;
    const bool linked = links_.contains(peer);
    if (std::ranges::count(verdict.left, peer.slot) == 0) {
      // It may be stopped, and reads this when it wakes.
      say(peer, {.epoch = verdict.next.epoch, .body = membership::FencedOff{verdict.next.epoch}});
      links_.expel(peer);
    } else {
      links_.part(peer);
    }
    if (!linked) ended(peer);
  }
}

/// Among members, the higher slot of a pair dials; newcomers dial everybody.
void ControlLoop::choose_whom_to_dial() {
  std::map<Member, ControlEndpoint> wanted;
  for (const auto& [member, endpoint] : acquaint_) {
    if (newcomer_ || member.slot < own_.member.slot) wanted.emplace(member, endpoint);
  }
  if (membership_) {
    for (const auto& [member, endpoint] : endpoints_) {
      if (!membership_->view().contains(member)) continue;
      const bool mine = member.slot < own_.member.slot || !membership_->is_member();
      if (mine) wanted.emplace(member, endpoint);
    }
  }
  links_.want(std::move(wanted));
}

/// Forgets former members, which cannot come back. Endpoints of newcomers stay: other members may
/// admit one that this process has long lost sight of.
void ControlLoop::forget_former_members(const View& next) {
  for (const Member& member : installed_.members) {
    if (next.contains(member)) continue;
    endpoints_.erase(member);
    heard_.erase(member);
  }
  installed_ = next;
}

void ControlLoop::be_over(Epoch epoch, const std::string& why) {
  if (over_) return;
  over_ = true;
  if (!leaving_) log(LogLevel::warning, "this rank is no longer a member: {}", why);
  timer_.cancel();
  // First: the ends of the links are no loss of the others.
  if (exchange_ && !leaving_) exchange_->evict();
  links_.hang_up_on_all();
  status_board_.write([&](Standing& standing) {
    standing.over = why;
    standing.left = leaving_;
  });
  // A process that asked to leave has left; that is no failure.
  if (participant_.serves() && !leaving_) participant_.publish_fenced(epoch, why);
}

void ControlLoop::arm() {
  const Instant next = membership_->next_tick();
  if (next == Instant::max()) return;
  timer_.expires_at(start_ + next);
  timer_.async_wait([this](const asio::error_code& cancelled) {
    if (cancelled || !working()) return;
    wake();
    membership_->tick(now());
    pump();
  });
}

// Lines and counters
// ---------------------------------------------------------------------------------

template <class... Facts>
void ControlLoop::log(LogLevel level, fmt::format_string<Facts...> text, Facts&&... facts) const {
  if (!log_.takes(level)) return;
  log_.write(level, membership_ ? membership_->view().epoch : 0,
             fmt::format(text, std::forward<Facts>(facts)...));
}

void ControlLoop::log_verdict(const Verdict& verdict) {
  const View& next = verdict.next;
  status_board_.count(&ControlCounters::epochs);
  for (const Slot slot : verdict.lost) {
    const bool has_left = std::ranges::count(verdict.left, slot) != 0;
    status_board_.count(has_left ? &ControlCounters::left : &ControlCounters::lost);
    if (has_left) {
      log(LogLevel::info, "rank {} has left", slot);
    } else {
      log(LogLevel::warning, "the members go on without rank {}", slot);
    }
  }
  for (const Slot slot : verdict.stalled) {
    status_board_.count(&ControlCounters::stalls);
    log(LogLevel::warning, "rank {} is slow: others waited for it past a deadline", slot);
  }
  for (const Slot slot : verdict.excused) {
    status_board_.count(&ControlCounters::excused);
    log(LogLevel::info, "rank {} stays: it had waited for a lost rank itself", slot);
  }
  for (const Member& member : next.members) {
    if (installed_.contains(member)) continue;
    status_board_.count(&ControlCounters::joined);
    // The first view has a line of its own.
    if (installed_.epoch != 0) log(LogLevel::info, "a process has joined as rank {}", member.slot);
  }
  std::vector<Slot> slots;
  for (const Member& member : next.members) slots.push_back(member.slot);
  log(LogLevel::info, "the epoch begins; its members: {}", fmt::join(slots, ", "));
}

void ControlLoop::log_quorum(const membership::QuorumMissing& missing) {
  const std::string answering = fmt::format("{}", fmt::join(missing.answering, ", "));
  if (missing.answering.size() >= missing.needed) {
    return log(LogLevel::info, "enough ranks answer again: {}", answering);
  }
  status_board_.count(&ControlCounters::quorums_missed);
  log(LogLevel::warning, "too few ranks answer to agree: {}; {} are needed", answering,
      missing.needed);
}

void ControlLoop::log_newcomers() {
  if (!log_.takes(LogLevel::info)) return;
  const std::vector<Member> before = status_board_.read().waiting;
  for (const Member& newcomer : membership_->waiting()) {
    if (std::ranges::count(before, newcomer) == 0)
      log(LogLevel::info, "a process waits to be rank {}", newcomer.slot);
  }
}

void ControlLoop::wake() {
  const Instant at = now();
  if (at - ran_ > 2 * options_.membership.heartbeat) runs_since_ = at;
  ran_ = at;
}

/// A heartbeat that came while this thread did not run is not late.
void ControlLoop::note_heartbeat(const Member& from) {
  if (!is_member(from)) return;
  const Instant at = now();
  const auto [heard, is_first] = heard_.try_emplace(from, at);
  const Instant silent = at - std::max(heard->second, runs_since_);
  heard->second = at;
  if (is_first || silent <= options_.membership.silence / 2) return;
  status_board_.count(&ControlCounters::heartbeats_late);
  log(LogLevel::warning, "rank {} was silent for {:.1f} s", from.slot,
      std::chrono::duration<double>(silent).count());
}

Instant ControlLoop::now() const {
  return std::chrono::steady_clock::now() - start_;
}

}  // namespace tokenyard::control
