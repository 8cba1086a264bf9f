#include "fabric/timeout_reports.hpp"

#include <algorithm>

namespace tokenyard {

uint64_t TimeoutReports::new_object() {
  const std::lock_guard lock(mutex_);
  return ++objects_;
}

void TimeoutReports::note(uint64_t object, uint32_t by, uint32_t of) {
  if (by == of) return;
  const std::lock_guard lock(mutex_);
  by_object_[object].emplace(by, of);
}

std::optional<uint32_t> TimeoutReports::reported_by(uint64_t object, uint32_t rank) const {
  const auto all = by_object_.find(object);
  if (all == by_object_.end()) return std::nullopt;
  const auto found = all->second.find(rank);
  return found == all->second.end() ? std::nullopt : std::optional(found->second);
}

uint32_t TimeoutReports::end_of_chain(uint64_t object, uint32_t named) const {
  const std::lock_guard lock(mutex_);
  std::set<uint32_t> seen;
  uint32_t end = named;
  while (const auto next = reported_by(object, end)) {
    if (!seen.insert(end).second) return named;
    end = *next;
  }
  return end;
}

bool TimeoutReports::are_complete(uint64_t object, const std::set<uint32_t>& ranks) const {
  const std::lock_guard lock(mutex_);
  return std::ranges::count_if(
             ranks, [&](uint32_t rank) { return !reported_by(object, rank).has_value(); }) <= 1;
}

}  // namespace tokenyard
