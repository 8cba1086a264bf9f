/// One member of a job, driven by hand.
#pragma once

#include <chrono>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "membership/membership.hpp"

namespace tokenyard::membership {

inline const MembershipOptions kOptions{.heartbeat = std::chrono::milliseconds(50),
                                        .silence = std::chrono::milliseconds(400),
                                        .ballot = std::chrono::milliseconds(20)};

inline View view_of(Epoch epoch, const std::vector<Member>& members) {
  return {.epoch = epoch, .slots = 3, .members = members};
}

/// Slot 0 of three.
struct OneMember {
  OneMember() { tick(Instant{}); }

  void tick(Instant now) {
    membership.tick(now);
    collect();
  }
  void hear(const Member& from, decltype(Message::body) body, Instant now) {
    membership.receive(from, {membership.view().epoch, std::move(body)}, now);
    collect();
  }
  void collect() {
    for (Effect& effect : membership.take_effects()) {
      if (auto* send = std::get_if<Send>(&effect)) {
        stands |= std::holds_alternative<Prepare>(send->message.body);
        if (const auto* beat = std::get_if<Heartbeat>(&send->message.body)) said = *beat;
        if (const auto* made = std::get_if<Promise>(&send->message.body)) promised = *made;
        if (const auto* asked = std::get_if<Accept>(&send->message.body)) proposed = asked->verdict;
      } else if (const auto* freeze = std::get_if<Freeze>(&effect)) {
        frozen_in = freeze->epoch;
      }
    }
  }

  const Member self{0, 10}, one{1, 11}, two{2, 12};
  Membership membership{self, view_of(1, {self, one, two}), kOptions};
  Heartbeat said;                   ///< the last one
  Promise promised;                 ///< the last one
  bool stands = false;              ///< it has asked others for promises
  std::optional<Verdict> proposed;  ///< the last one
  Epoch frozen_in = 0;
};

}  // namespace tokenyard::membership
