#include "job/process_ranks.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "job/message_fields.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard {

control::View ProcessRanks::view() const {
  const std::lock_guard lock(mutex_);
  return view_;
}

control::Epoch ProcessRanks::epoch() const {
  const std::lock_guard lock(mutex_);
  return view_.epoch;
}

std::vector<control::Member> ProcessRanks::gone_members() const {
  std::vector<control::Member> gone;
  for (const control::Member& member : view().members) {
    if (member.slot == slot() || !hears(member)) continue;
    if (mailbox_.state(member.slot) != PeerState::present) gone.push_back(member);
  }
  return gone;
}

std::vector<uint32_t> ProcessRanks::evict(const control::View& seen,
                                          std::span<const uint32_t> slots, control::Epoch since,
                                          Accelerator& accelerator, TimePoint until,
                                          const std::function<void()>& check) {
  const TimePoint start = accelerator.now();
  std::vector<uint32_t> present, excused;
  control::Epoch asked_in = 0;
  TimePoint ask_again{};
  const auto all_are_out = [&] {
    check();
    const control::View members = view();
    present.clear();
    excused.clear();
    for (const uint32_t slot : slots) {
      const auto member = members.at(slot);
      if (!member || member != seen.at(slot)) continue;
      // An excuse ends with its process: nobody else asks to evict one that has died since.
      const bool is_gone = hears(*member) && mailbox_.state(slot) != PeerState::present;
      (is_excused(*member, since) && !is_gone ? excused : present).push_back(slot);
    }
    if (present.empty()) return true;
    const TimePoint now = accelerator.now();
    if (members.epoch != asked_in || now >= ask_again) {
      for (const uint32_t slot : present) control_->abandon(*members.at(slot), members.epoch);
      asked_in = members.epoch;
      ask_again = now + kAskAgain;
    }
    return false;
  };
  if (all_are_out() || accelerator.wait_until(until, all_are_out)) return excused;
  const std::lock_guard lock(mutex_);
  if (shortage_) throw QuorumLost(shortage_->answering, shortage_->needed);
  const std::chrono::duration<double> waited = accelerator.now() - start;
  throw PeerTimeout({.rank = present.front(),
                     .phase = "rebuild: agree to go on without it",
                     .expected = slots.size(),
                     .seen = slots.size() - present.size(),
                     .waited_s = waited.count()});
}

control::View ProcessRanks::await_members(Accelerator& accelerator, TimePoint until,
                                          const std::function<void()>& check) {
  const TimePoint start = accelerator.now();
  control::View members;
  std::vector<uint32_t> gone;
  std::optional<uint32_t> unheard;
  const auto all_are_heard_or_gone = [&] {
    check();
    members = view();
    gone.clear();
    unheard.reset();
    if (!members.at(slot())) return false;  // Not admitted yet, as far as it is known here.
    for (const control::Member& member : members.members) {
      if (member.slot == slot()) continue;
      if (!hears(member)) {
        unheard = member.slot;
      } else if (mailbox_.state(member.slot) != PeerState::present) {
        gone.push_back(member.slot);
      }
    }
    return !gone.empty() || (!unheard && control_->is_linked_to_all());
  };
  for (;;) {
    if (!all_are_heard_or_gone() && !accelerator.wait_until(until, all_are_heard_or_gone)) {
      const std::chrono::duration<double> waited = accelerator.now() - start;
      throw PeerTimeout({.rank = unheard.value_or(slot()),
                         .phase = "world: connect to all members of the job",
                         .expected = members.members.size(),
                         .seen = 0,
                         .waited_s = waited.count()});
    }
    if (gone.empty()) return members;
    evict(members, gone, members.epoch, accelerator, until, check);
  }
}

void ProcessRanks::leave() {
  throw Unsupported("leave", "a process says goodbye only when its job ends");
}

void ProcessRanks::send(uint32_t to, const Message& message) {
  if (message.bytes.size() > kBytesMax || message.what.size() > kWhatMax) {
    throw InvalidArgument("bytes", fmt::format("at most {} per rank", kBytesMax),
                          fmt::format("{}", message.bytes.size()));
  }
  ++unsent_;
  // The control plane lets go of a message once the system has it, or its peer is gone.
  const auto left = [this](const std::vector<std::byte>* bytes) {
    delete bytes;
    --unsent_;
  };
  control_->send(to, control::Bytes(new std::vector<std::byte>(to_bytes(message)), left));
}

bool ProcessRanks::received(control::Slot from, std::vector<std::byte> bytes) {
  std::optional<Message> message = from_bytes<Message>(bytes);
  return message && mailbox_.put(from, std::move(*message));
}

void ProcessRanks::came(const control::Member& member) {
  // Its mailbox is its own before anybody learns that it is heard.
  mailbox_.revive(member.slot);
  const std::lock_guard lock(mutex_);
  heard_[member.slot] = member;
}

void ProcessRanks::gone(control::Slot peer, bool said_goodbye) {
  mailbox_.mark(peer, said_goodbye ? PeerState::left : PeerState::lost);
}

void ProcessRanks::evicted() {
  mailbox_.mark(slot(), PeerState::lost);
}

void ProcessRanks::install(const control::Verdict& verdict) {
  const std::lock_guard lock(mutex_);
  view_ = verdict.next;
  for (const control::Slot slot : verdict.excused) {
    if (const auto member = view_.at(slot)) excused_[*member] = view_.epoch;
  }
  shortage_.reset();
}

bool ProcessRanks::hears(const control::Member& member) const {
  const std::lock_guard lock(mutex_);
  const auto found = heard_.find(member.slot);
  return found != heard_.end() && found->second == member;
}

bool ProcessRanks::is_excused(const control::Member& member, control::Epoch since) const {
  const std::lock_guard lock(mutex_);
  const auto found = excused_.find(member);
  return found != excused_.end() && found->second > since;
}

void ProcessRanks::quorum_missing(const std::vector<control::Slot>& answering, uint32_t needed) {
  const std::lock_guard lock(mutex_);
  shortage_.reset();
  if (answering.size() < needed) shortage_ = Shortage{answering, needed};
}

}  // namespace tokenyard
