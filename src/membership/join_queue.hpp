/// Newcomers that have knocked, here or at others, and would like to be let in.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <vector>

#include "membership/roster.hpp"
#include "membership/view.hpp"

namespace tokenyard::membership {

/// A newcomer that does not knock again is forgotten after a while. What others tell is not told
/// on, so that hearsay keeps nobody here.
class JoinQueue {
 public:
  static constexpr size_t kNewcomersMax = 1024;

  void requested(const Member& newcomer, Instant now);
  void published_of(const Member& newcomer, Instant now);
  void forget_older_than(Instant instant);
  /// Who is in has no need to wait. Who was a member once does not come back: it draws a new
  /// incarnation.
  void install(const View& before, const View& now);

  bool was_member(const Member& member) const;
  std::vector<Member> all() const;
  /// Those that have knocked at this member.
  std::vector<Member> here() const;
  bool anybody_for(Slot slot) const;

 private:
  struct Newcomer {
    std::optional<Instant> requested = {}, published = {};  ///< when last
  };
  /// Null if there is no room, or no way back.
  Newcomer* note(const Member& newcomer);

  std::map<Member, Newcomer> newcomers_;
  std::map<Slot, uint64_t> departed_;  ///< the last process that lost the slot
};

}  // namespace tokenyard::membership
