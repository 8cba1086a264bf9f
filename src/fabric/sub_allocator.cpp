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
  const auto [found, offset] = *best;
  remove_free(free_.find(offset));
  if (found > wanted) add_free(offset + wanted, found - wanted);
  live_.emplace(offset, wanted);
  used_ += wanted;
  peak_ = std::max(peak_, used_);
  return offset;
}

std::optional<uint64_t> SubAllocator::allocate_high(uint64_t bytes) {
  if (bytes > capacity_) return std::nullopt;
  const uint64_t wanted = rounded(bytes);
  const auto highest = std::find_if(free_.rbegin(), free_.rend(),
                                    [&](const auto& extent) { return extent.second >= wanted; });
  if (highest == free_.rend()) return std::nullopt;
  const auto [begin, size] = *highest;
  remove_free(free_.find(begin));
  if (size > wanted) add_free(begin, size - wanted);
  const uint64_t offset = begin + size - wanted;
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

void SubAllocator::trim(uint64_t offset, uint64_t bytes) {
  const auto rest = split(offset, bytes);
  if (rest) free(*rest);
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

void SubAllocator::check() const {
  uint64_t at = 0;
  uint64_t used = 0;
  bool last_was_free = false;
  auto taken = live_.begin();
  auto open = free_.begin();
  while (taken != live_.end() || open != free_.end()) {
    const bool is_free = open != free_.end() && open->first == at;
    const bool is_live = taken != live_.end() && taken->first == at;
    if (is_free == is_live) {
      throw InternalError(fmt::format("arena: offset {} is {}", at,
                                      is_free ? "both free and live" : "neither free nor live"));
    }
    if (is_free && last_was_free) {
      throw InternalError(fmt::format("arena: adjacent free extents at {} are not merged", at));
    }
    if (is_free && !free_by_size_.contains({open->second, open->first})) {
      throw InternalError(fmt::format("arena: free extent at {} is not indexed", at));
    }
    const uint64_t bytes = is_free ? (open++)->second : (taken++)->second;
    if (bytes == 0 || bytes % kAlignment != 0) {
      throw InternalError(fmt::format(
          "arena: {} bytes at {} are not a positive multiple of the alignment", bytes, at));
    }
    used += is_free ? 0 : bytes;
    last_was_free = is_free;
    at += bytes;
  }
  if (at != capacity_) throw InternalError("arena: pieces do not cover the region");
  if (used != used_) throw InternalError("arena: used bytes are miscounted");
  if (free_.size() != free_by_size_.size()) throw InternalError("arena: index has extra extents");
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
