#include "world/job_world.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

namespace tokenyard {

namespace {

/// A member has begun anew, so nobody completes this attempt.
struct Superseded : Error {
  using Error::Error;
};

}  // namespace

JobWorld::JobWorld(JobMember self, const Hardware& hardware, const WorldOptions& options,
                   std::shared_ptr<const AbsenceWatch> absences, TimePoint until, SlotChoice choice)
    : self_(std::move(self)),
      ranks_(self_.ranks),
      hardware_(hardware),
      options_(options),
      absences_(std::move(absences)),
      until_(until),
      choice_(std::move(choice)) {}

template <class Call>
auto JobWorld::in_ranks(Call call) const {
  try {
    return call();
  } catch (const PeerTimeout& error) {
    WaitFacts facts = error.facts;
    facts.rank = rank_of(facts.rank);
    throw PeerTimeout(facts);
  } catch (const QuorumLost& error) {
    std::vector<uint32_t> answering;
    for (const uint32_t slot : error.answering) {
      const uint32_t rank = rank_of(slot);
      if (choice_.slots.empty() || rank < choice_.slots.size()) answering.push_back(rank);
    }
    throw QuorumLost(answering, error.needed);
  }
}

void JobWorld::leave_out(const std::vector<uint32_t>& ranks, control::Epoch since) {
  std::vector<uint32_t> slots;
  for (const uint32_t rank : ranks) slots.push_back(choice_.slots[rank]);
  in_ranks([&] {
    ranks_->evict(choice_.processes, slots, since, *hardware_.accelerator, until_,
                  [this] { check_ended(); });
  });
}

control::View JobWorld::await_members() const {
  return in_ranks([this] {
    return ranks_->await_members(*hardware_.accelerator, until_, [this] { check_ended(); });
  });
}

std::unique_ptr<World> JobWorld::make() {
  for (;;) {
    members_ = await_members();
    const Membership chosen = chosen_members();
    for (uint32_t rank = 0; choice_.are_all_needed && rank < chosen.slots.size(); ++rank) {
      const bool is_gone = choice_.slots[rank] != kAbsent && !chosen.present(rank);
      if (is_gone) throw PeerLost({.rank = rank, .phase = choice_.what});
    }
    std::erase_if(members_.members, [&](const control::Member& member) {
      return std::ranges::count(chosen.slots, member.slot) == 0;
    });
    try {
      Membership ranks = choice_.renumbers ? chosen.without({}) : chosen;
      ranks.generation = agree(chosen);
      Inheritance inherited{.job = self_.job,
                            .members = members_,
                            .follows_job = choice_.follows_job,
                            .mutant = self_.mutant};
      const bool may_begin_anew = !choice_.are_all_needed;
      inherited.check_while_made = [this, may_begin_anew, &ranks] {
        check_ended();
        if (may_begin_anew) check_members(ranks.generation);
      };
      if (may_begin_anew) {
        inherited.check_at_last = [this, &ranks](uint32_t rank) {
          check_ended();
          check_not_anew(ranks.slots[rank], ranks.generation);
        };
      }
      for (uint32_t rank = 0; choice_.renumbers && rank < chosen.slots.size(); ++rank)
        if (!chosen.present(rank)) inherited.left_out.push_back(rank);
      return join(ranks, ranks_, hardware_.accelerator, hardware_.fabric, options_, absences_, {},
                  hardware_.network, std::move(inherited));
    } catch (const Superseded&) {
      continue;
    } catch (const PeerLost&) {
      // It is no member, or none any more once the others have agreed on that.
      if (hardware_.accelerator->now() >= until_) throw;
    }
  }
}

/// Returns the number of chosen slots for a slot that is none of them.
uint32_t JobWorld::rank_of(uint32_t slot) const {
  const std::vector<uint32_t>& slots = choice_.slots;
  if (slots.empty()) return slot;
  return static_cast<uint32_t>(std::ranges::find(slots, slot) - slots.begin());
}

Membership JobWorld::chosen_members() const {
  Membership chosen{.generation = ranks_->mailbox().newest_generation(),
                    .rank = rank_of(ranks_->slot()),
                    .slots = choice_.slots};
  if (chosen.slots.empty()) {
    chosen.slots.resize(members_.slots);
    std::iota(chosen.slots.begin(), chosen.slots.end(), 0u);
  }
  for (uint32_t& slot : chosen.slots) {
    const auto member = slot == kAbsent ? std::nullopt : members_.at(slot);
    const bool may_stay = choice_.processes.epoch == 0 || choice_.processes.at(slot) == member;
    if (!member || !may_stay) slot = kAbsent;
  }
  return chosen;
}

uint32_t JobWorld::agree(const Membership& ranks) const {
  AbortFlag flag(*hardware_.accelerator, static_cast<uint32_t>(ranks.slots.size()),
                 options_.timeout, absences_);
  Bootstrap asking(ranks_, ranks, *hardware_.accelerator, flag);
  std::vector<uint32_t> present;
  for (const control::Member& member : members_.members) present.push_back(member.slot);
  const auto has_changed = [this] {
    const control::View now = ranks_->view();
    if (now.epoch == members_.epoch) return false;
    const auto stays = [&](const control::Member& member) { return now.contains(member); };
    // Newcomers are not among given processes.
    return choice_.processes.epoch == 0 || !std::ranges::all_of(members_.members, stays);
  };
  return asking.agree_on_generation(present, choice_.what, until_, [this, &has_changed] {
    check_ended();
    if (has_changed()) throw Superseded("world: the membership has changed");
  });
}

void JobWorld::check_members(uint32_t generation) const {
  const control::View now = ranks_->view();
  for (const control::Member& member : members_.members) {
    if (!now.contains(member)) throw Superseded("world: a member is lost");
    check_not_anew(member.slot, generation);
  }
}

/// Throws Superseded if the rank of the slot has asked for a later generation.
void JobWorld::check_not_anew(uint32_t slot, uint32_t generation) const {
  const auto asked = ranks_->mailbox().latest_rebuild(slot);
  if (asked && asked->generation > generation) throw Superseded("begun anew");
}

}  // namespace tokenyard
