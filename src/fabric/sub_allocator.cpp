#include "fabric/sub_allocator.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "tokenyard/error.hpp"

namespace tokenyard {

SubAllocator::SubAllocator(uint64_t capacity) : capacity_(capacity / kAlignment * kAlignment) {
  if (capacity_ > 0) add_free(0, capacity_);
}

std::optional<uint64_t> SubAllocator::allocate(uint64_t bytes) {
  if (bytes > capacity_) return std::nullopt;  // Also prevents overflow in the rounding below.
  const uint64_t wanted = rounded(bytes);
  const auto best = free_by_size_.lower_bound({wanted, 0});
  if (best == free_by_size_.end()) return std::nullopt;
  return take({best->second, best->first}, wanted, false);
}

std::optional<uint64_t> SubAllocator::allocate_high(uint64_t bytes) {
  if (bytes > capacity_) return std::nullopt;
  const uint64_t wanted = rounded(bytes);
  const auto highest = std::find_if(free_.rbegin(), free_.rend(),
                                    [&](const auto& extent) { return extent.second >= wanted; });
  if (highest == free_.rend()) return std::nullopt;
  return take(*highest, wanted, true);
}

uint64_t SubAllocator::take(std::pair<uint64_t, uint64_t> extent, uint64_t wanted, bool high) {
  const auto [begin, size] = extent;
  const uint64_t offset = high ? begin + size - wanted : begin;
  remove_free(free_.find(begin));
  if (size > wanted) add_free(high ? begin : begin + wanted, size - wanted);
  live_.emplace(offset, wanted);
  used_ += wanted;
  peak_ = std::max(peak_, used_);
  return offset;
}

void SubAllocator::free(uint64_t offset) {
  const auto piece = live(offset);
  const uint64_t bytes = piece->second;
  live_.erase(piece);
  used_ -= bytes;
  add_free(offset, bytes);
}

std::optional<uint64_t> SubAllocator::split(uint64_t offset, uint64_t bytes) {
  const auto piece = live(offset);
  if (bytes >= piece->second) return std::nullopt;
  const uint64_t kept = rounded(bytes);
  if (kept >= piece->second) return std::nullopt;
  const uint64_t rest = offset + kept;
  live_.emplace(rest, piece->second - kept);
  piece->second = kept;
  return rest;
}

uint64_t SubAllocator::bytes_of(uint64_t offset) const {
  return const_cast<SubAllocator*>(this)->live(offset)->second;
}

uint64_t SubAllocator::largest_free() const {
  return free_by_size_.empty() ? 0 : free_by_size_.rbegin()->first;
}

uint64_t SubAllocator::rounded(uint64_t bytes) {
  return std::max<uint64_t>((bytes + kAlignment - 1) / kAlignment, 1) * kAlignment;
}

void SubAllocator::add_free(uint64_t offset, uint64_t bytes) {
  const auto after = free_.lower_bound(offset);
  if (after != free_.end() && after->first == offset + bytes) {
    bytes += after->second;
    remove_free(after);
  }
  const auto next = free_.lower_bound(offset);
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == offset) {
      offset = before->first;
      bytes += before->second;
      remove_free(before);
    }
  }
  free_.emplace(offset, bytes);
  free_by_size_.emplace(bytes, offset);
}

void SubAllocator::remove_free(std::map<uint64_t, uint64_t>::iterator extent) {
  free_by_size_.erase({extent->second, extent->first});
  free_.erase(extent);
}

std::map<uint64_t, uint64_t>::iterator SubAllocator::live(uint64_t offset) {
  const auto piece = live_.find(offset);
  if (piece == live_.end()) {
    throw InternalError(fmt::format("arena: no piece begins at offset {}", offset));
  }
  return piece;
}

}  // namespace tokenyard
