#include "fabric/tcp/progress.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <utility>

namespace tokenyard::tcp {

void Progress::enter(std::string phase, std::vector<uint32_t> missing) {
  const std::lock_guard lock(mutex_);
  phase_ = std::move(phase);
  missing_ = std::move(missing);
  awaited_ = missing_.size();
  trouble_.clear();
}

void Progress::missing(std::vector<uint32_t> ranks) {
  const std::lock_guard lock(mutex_);
  missing_ = std::move(ranks);
  awaited_ = std::max(awaited_, missing_.size());
}

void Progress::arrived(uint32_t rank) {
  const std::lock_guard lock(mutex_);
  std::erase(missing_, rank);
}

void Progress::refused(const std::string& who, const std::string& why) {
  const std::lock_guard lock(mutex_);
  if (refusals_.size() >= kRefusalsKept) return;
  refusals_.push_back(fmt::format("{}, which {}", who, why));
  fmt::print(stderr, "tokenyard: rank {} refused {}\n", rank_, refusals_.back());
}

void Progress::trouble(std::string what) {
  const std::lock_guard lock(mutex_);
  trouble_ = std::move(what);
}

std::vector<std::string> Progress::refusals() const {
  const std::lock_guard lock(mutex_);
  return refusals_;
}

PeerTimeout Progress::timeout(double waited_s) const {
  const std::lock_guard lock(mutex_);
  WaitFacts facts{.rank = missing_.empty() ? 0 : missing_.front(),
                  .phase = phase_,
                  .expected = awaited_,
                  .seen = awaited_ - missing_.size(),
                  .waited_s = waited_s};
  if (missing_.size() > 1) facts.phase += fmt::format(", missing ranks {}", missing_);
  if (!trouble_.empty()) facts.phase += fmt::format(" ({})", trouble_);
  if (!refusals_.empty()) facts.phase += fmt::format(" (refused: {})", fmt::join(refusals_, "; "));
  return PeerTimeout(facts);
}

}  // namespace tokenyard::tcp
