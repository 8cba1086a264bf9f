#include "membership/waiting_room.hpp"

#include <algorithm>

namespace tokenyard::membership {

WaitingRoom::Newcomer* WaitingRoom::note(const Member& newcomer) {
  if (was_member(newcomer)) return nullptr;
  if (newcomers_.size() >= kNewcomersMax && !newcomers_.contains(newcomer)) return nullptr;
  return &newcomers_[newcomer];
}

void WaitingRoom::knocked(const Member& newcomer, Instant now) {
  if (Newcomer* known = note(newcomer)) known->knocked = now;
}

void WaitingRoom::told_of(const Member& newcomer, Instant now) {
  if (Newcomer* known = note(newcomer)) known->told = now;
}

void WaitingRoom::forget_older_than(Instant instant) {
  for (auto& [member, newcomer] : newcomers_) {
    for (std::optional<Instant>* seen : {&newcomer.knocked, &newcomer.told}) {
      if (*seen && **seen < instant) seen->reset();
    }
  }
  std::erase_if(newcomers_,
                [](const auto& entry) { return !entry.second.knocked && !entry.second.told; });
}

void WaitingRoom::install(const View& before, const View& now) {
  for (const Member& member : before.members) {
    if (!now.contains(member)) departed_[member.slot] = member.incarnation;
  }
  std::erase_if(newcomers_, [&](const auto& entry) {
    return now.contains(entry.first) || was_member(entry.first);
  });
}

bool WaitingRoom::was_member(const Member& member) const {
  const auto found = departed_.find(member.slot);
  return found != departed_.end() && found->second == member.incarnation;
}

std::vector<Member> WaitingRoom::all() const {
  std::vector<Member> members;
  for (const auto& [member, newcomer] : newcomers_) members.push_back(member);
  return members;
}

std::vector<Member> WaitingRoom::here() const {
  std::vector<Member> members;
  for (const auto& [member, newcomer] : newcomers_) {
    if (newcomer.knocked) members.push_back(member);
  }
  return members;
}

bool WaitingRoom::anybody_for(Slot slot) const {
  return std::any_of(newcomers_.begin(), newcomers_.end(),
                     [&](const auto& entry) { return entry.first.slot == slot; });
}

}  // namespace tokenyard::membership
