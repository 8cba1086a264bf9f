/// The registered memory of one rank, as its proxy knows it. One thread at a time uses it.
#pragma once

#include <array>
#include <cstddef>
#include <span>

#include "device/network_request.hpp"

namespace tokenyard {

class RegisteredRegions {
 public:
  /// `by_host`: whether this process may access it; else it is a GPU's.
  void open(MemoryKey key, std::span<std::byte> memory, bool by_host = true) {
    entries_[region_of_key(key)] = {key, memory, by_host};
  }
  void close(uint32_t region) { entries_[region] = {}; }
  /// Returns the memory that the key opens; null if it opens none.
  const std::span<std::byte>* find(MemoryKey key) const {
    const uint32_t region = region_of_key(key);
    if (key == 0 || region >= kNetworkRegions || entries_[region].key != key) return nullptr;
    return &entries_[region].memory;
  }
  /// Returns whether the memory of a key that opens it is for this process to access.
  bool is_by_host(MemoryKey key) const { return entries_[region_of_key(key)].by_host; }
  /// Returns the key of a region; 0 if it is closed or does not exist.
  MemoryKey key_of(uint32_t region) const {
    return region < kNetworkRegions ? entries_[region].key : 0;
  }

 private:
  struct Entry {
    MemoryKey key = 0;
    std::span<std::byte> memory;
    bool by_host = true;
  };
  std::array<Entry, kNetworkRegions> entries_;
};

/// Returns whether `bytes` at `offset` lie within so many bytes; no sum overflows.
inline bool lies_within(uint64_t offset, uint64_t bytes, uint64_t size) {
  return bytes <= size && offset <= size - bytes;
}

}  // namespace tokenyard
