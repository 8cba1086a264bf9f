/// Newcomers that have asked to join, at this member or at others.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <vector>

#include "membership/roster.hpp"
#include "membership/view.hpp"

namespace tokenyard::membership {

/// Forgets a newcomer that stops asking. A member passes on only requests made to itself, so
/// hearsay cannot circulate and keep a newcomer alive.
class JoinQueue {
 public:
  static constexpr size_t kNewcomersMax = 1024;

  void requested(const Member& newcomer, Instant now);
  void published_of(const Member& newcomer, Instant now);
  void forget_older_than(Instant instant);
  /// Removes newcomers that are members now. A former member cannot return under its old
  /// incarnation; its replacement draws a new one.
  void install(const View& before, const View& now);

  bool was_member(const Member& member) const;
  /// Returns the newcomers, or if `here` those that have asked this member.
  std::vector<Member> all(bool here = false) const;
  bool anybody_for(Slot slot) const;

 private:
  struct Newcomer {
    std::optional<Instant> requested = {}, published = {};  ///< last request here, last report
  };
  /// Returns null if the queue is full or the process is a former member.
  Newcomer* note(const Member& newcomer);

  std::map<Member, Newcomer> newcomers_;
  std::map<Slot, uint64_t> departed_;  ///< the last process that lost each slot
};

}  // namespace tokenyard::membership
