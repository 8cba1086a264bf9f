/// Memory of this rank that stands for memory of a rank out of load/store reach: kernels store
/// there, and what they stored is put to the place that it mirrors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>

#include "device/network_request.hpp"

namespace tokenyard {

/// A mirror, or a part of one.
struct Mirror {
  uint32_t rank;         ///< whose memory it mirrors
  NetworkTarget target;  ///< its first byte's place there
  MemoryKey key;         ///< by which this rank's requests read the mirror
  size_t bytes;
};

/// The mirrors of a world's network. Any thread may call all of it.
class Mirrors {
 public:
  void add(const std::byte* begin, const Mirror& mirror);
  void remove(const std::byte* begin);
  /// Returns the mirror from this byte on; nothing if the byte is in none.
  std::optional<Mirror> from(const std::byte* at) const;

 private:
  mutable std::mutex mutex_;
  std::map<const std::byte*, Mirror> mirrors_;
};

}  // namespace tokenyard
