/// Finds the rank that a failed call should name, where ranks wait for one another in chains.
///
/// A rank that is silent holds up those that wait for it, and these hold up others, which would
/// name them. So a rank whose wait has failed reports to all others for whom it waited, and then
/// follows their reports: a rank that has waited for another one is not at fault. The last one of
/// the chain is named, on all ranks alike.
///
///     rank 3 waits for rank 2 -- reports 2 -->  rank 2 waits for rank 1 -- reports 1 -->  rank 1
///
/// A call fails once per object and world, so a rank reports once per object. Objects have numbers,
/// alike on all ranks, since they are made in the same order.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <set>

namespace tokenyard {

class TimeoutReports {
 public:
  /// Returns the number of a new object. Called once per object, on all ranks.
  uint64_t new_object();
  /// Notes that a call of rank `by` has failed in a wait for rank `of`; only the first counts. Any
  /// thread may call it.
  void note(uint64_t object, uint32_t by, uint32_t of);
  /// Returns the rank at the end of the chain that begins with `named`; `named` itself if the
  /// chain is a circle, as where a link between two ranks is cut.
  uint32_t end_of_chain(uint64_t object, uint32_t named) const;
  /// Returns whether nothing more can change the end of any chain: of `ranks`, all but one have
  /// reported.
  bool are_complete(uint64_t object, const std::set<uint32_t>& ranks) const;

 private:
  std::optional<uint32_t> reported_by(uint64_t object, uint32_t rank) const;  ///< with the lock

  mutable std::mutex mutex_;
  uint64_t objects_ = 0;
  std::map<uint64_t, std::map<uint32_t, uint32_t>> by_object_;  ///< object -> by -> of
};

}  // namespace tokenyard
