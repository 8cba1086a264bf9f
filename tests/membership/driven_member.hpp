/// One member of a job of any size, driven by hand; keeps all its effects.
#pragma once

#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "membership/membership.hpp"
#include "membership/one_member.hpp"

namespace tokenyard::membership {

/// The process that founds the job in a slot.
inline Member founder(Slot slot) {
  return {slot, 10 + slot};
}

inline View founders(uint32_t slots) {
  View view{.epoch = 1, .slots = slots, .members = {}};
  for (Slot slot = 0; slot < slots; ++slot) view.members.push_back(founder(slot));
  return view;
}

struct DrivenMember {
  explicit DrivenMember(Slot slot, uint32_t slots = 3, const MembershipOptions& options = kOptions)
      : DrivenMember(founder(slot), founders(slots), options) {}
  DrivenMember(const Member& self, const View& view, const MembershipOptions& options = kOptions)
      : membership(self, view, options) {
    tick(Instant{});
  }

  void tick(Instant now) {
    membership.tick(now);
    collect();
  }
  void hear(const Member& from, decltype(Message::body) body, Instant now,
            std::optional<Epoch> epoch = {}) {
    membership.receive(from, {epoch.value_or(membership.view().epoch), std::move(body)}, now);
    collect();
  }
  void frozen(std::vector<GroupProgress> progress, Instant now) {
    membership.frozen(std::move(progress), now);
    collect();
  }
  /// Another member leads the epoch to this end.
  void decided(const Member& by, const View& next, Instant now) {
    hear(by, Prepare{{1, by.slot}}, now);
    if (!membership.is_frozen()) frozen({}, now);
    Verdict verdict{.next = next};
    for (const Member& member : membership.view().members)
      if (!next.contains(member)) verdict.lost.push_back(member.slot);
    hear(by, Decide{std::move(verdict)}, now);
  }
  void collect() {
    for (Effect& effect : membership.take_effects()) effects.push_back(std::move(effect));
  }

  /// Returns the effects of one kind since the last `clear`.
  template <class Kind>
  std::vector<Kind> all() const {
    std::vector<Kind> found;
    for (const Effect& effect : effects)
      if (const auto* one = std::get_if<Kind>(&effect)) found.push_back(*one);
    return found;
  }
  /// Returns the messages of one kind since the last `clear`, perhaps those to one process.
  template <class Body>
  std::vector<Body> said(std::optional<Member> to = {}) const {
    std::vector<Body> found;
    for (const Send& send : all<Send>())
      if (const auto* body = std::get_if<Body>(&send.message.body); body && (!to || *to == send.to))
        found.push_back(*body);
    return found;
  }
  void clear() { effects.clear(); }

  Membership membership;
  std::vector<Effect> effects;
};

}  // namespace tokenyard::membership
