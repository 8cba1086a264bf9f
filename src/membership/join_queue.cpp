#include "membership/join_queue.hpp"

#include <algorithm>

namespace tokenyard::membership {

JoinQueue::Newcomer* JoinQueue::note(const Member& newcomer) {
  if (was_member(newcomer)) return nullptr;
  if (newcomers_.size() >= kNewcomersMax && !newcomers_.contains(newcomer)) return nullptr;
  return &newcomers_[newcomer];
}

void JoinQueue::requested(const Member& newcomer, Instant now) {
  if (Newcomer* known = note(newcomer)) known->requested = now;
}

void JoinQueue::published_of(const Member& newcomer, Instant now) {
  if (Newcomer* known = note(newcomer)) known->published = now;
}

void JoinQueue::forget_older_than(Instant instant) {
  for (auto& [member, newcomer] : newcomers_) {
    for (std::optional<Instant>* seen : {&newcomer.requested, &newcomer.published}) {
      if (*seen && **seen < instant) seen->reset();
    }
  }
  std::erase_if(newcomers_, [](const auto& entry) {
    return !entry.second.requested && !entry.second.published;
  });
}

void JoinQueue::install(const View& before, const View& now) {
  for (const Member& member : before.members) {
    if (!now.contains(member)) departed_[member.slot] = member.incarnation;
  }
  std::erase_if(newcomers_, [&](const auto& entry) {
    return now.contains(entry.first) || was_member(entry.first);
  });
}

bool JoinQueue::was_member(const Member& member) const {
  const auto found = departed_.find(member.slot);
  return found != departed_.end() && found->second == member.incarnation;
}

std::vector<Member> JoinQueue::all(bool here) const {
  std::vector<Member> members;
  for (const auto& [member, newcomer] : newcomers_)
    if (!here || newcomer.requested) members.push_back(member);
  return members;
}

bool JoinQueue::anybody_for(Slot slot) const {
  return std::any_of(newcomers_.begin(), newcomers_.end(),
                     [&](const auto& entry) { return entry.first.slot == slot; });
}

}  // namespace tokenyard::membership
