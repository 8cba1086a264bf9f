#include "fabric/network/mirrors.hpp"

#include <iterator>

namespace tokenyard {

void Mirrors::add(const std::byte* begin, const Mirror& mirror) {
  const std::lock_guard lock(mutex_);
  mirrors_[begin] = mirror;
}

void Mirrors::remove(const std::byte* begin) {
  const std::lock_guard lock(mutex_);
  mirrors_.erase(begin);
}

std::optional<Mirror> Mirrors::from(const std::byte* at) const {
  const std::lock_guard lock(mutex_);
  const auto next = mirrors_.upper_bound(at);
  if (next == mirrors_.begin()) return std::nullopt;
  const auto& [begin, mirror] = *std::prev(next);
  const auto skipped = static_cast<size_t>(at - begin);
  if (skipped >= mirror.bytes) return std::nullopt;
  return Mirror{.rank = mirror.rank,
                .target = mirror.target + skipped,
                .key = mirror.key,
                .bytes = mirror.bytes - skipped};
}

}  // namespace tokenyard
