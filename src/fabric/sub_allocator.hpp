/// Tracks by offset which bytes of a region are allocated; touches no memory. Best fit, lowest
/// offset among equals, free neighbours merged at once, so the same calls give the same offsets on
/// every run. Long-lived pieces go to the upper end, where they do not fragment the space for
/// short-lived ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace tokenyard {

class SubAllocator {
 public:
  static constexpr uint64_t kAlignment = 256;

  /// `capacity` is rounded down to the alignment.
  explicit SubAllocator(uint64_t capacity);

  /// Returns the offset of a piece of at least `bytes` (one unit of alignment for 0), or nothing if
  /// no single free extent is large enough.
  std::optional<uint64_t> allocate(uint64_t bytes);
  /// The same at the upper end of the highest free extent that fits.
  std::optional<uint64_t> allocate_high(uint64_t bytes);
  /// Throws InternalError if no live piece begins at `offset`.
  void free(uint64_t offset);
  /// Splits a live piece after its first `bytes` (rounded up, at least one unit). Returns the
  /// offset of the second piece, or nothing if there is no rest.
  std::optional<uint64_t> split(uint64_t offset, uint64_t bytes);

  uint64_t bytes_of(uint64_t offset) const;  ///< size of a live piece, rounding included
  uint64_t capacity() const { return capacity_; }
  uint64_t used() const { return used_; }
  uint64_t peak() const { return peak_; }
  uint64_t largest_free() const;
  /// Returns how many bytes an allocation of `bytes` takes.
  static uint64_t rounded(uint64_t bytes);

 private:
  friend struct SubAllocatorCheck;  // A test's.

  /// Takes `wanted` bytes of a free extent: its first ones or, if `high`, its last.
  uint64_t take(std::pair<uint64_t, uint64_t> extent, uint64_t wanted, bool high);
  void add_free(uint64_t offset, uint64_t bytes);
  void remove_free(std::map<uint64_t, uint64_t>::iterator extent);
  std::map<uint64_t, uint64_t>::iterator live(uint64_t offset);

  uint64_t capacity_;
  uint64_t used_ = 0;
  uint64_t peak_ = 0;
  std::map<uint64_t, uint64_t> live_;                     ///< offset -> bytes
  std::map<uint64_t, uint64_t> free_;                     ///< offset -> bytes
  std::set<std::pair<uint64_t, uint64_t>> free_by_size_;  ///< (bytes, offset), the same extents
};

}  // namespace tokenyard
