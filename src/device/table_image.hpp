/// Tables of several types, one behind the other, that a host copies to a device at once.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace tokenyard {

class TableImage {
 public:
  /// Returns where the table begins, in bytes: a multiple of 64.
  template <class T>
  size_t append(const std::vector<T>& table) {
    const size_t at = bytes_.size();
    const auto bytes = std::as_bytes(std::span(table));
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
    bytes_.resize((bytes_.size() + 63) / 64 * 64);
    return at;
  }
  const std::byte* data() const { return bytes_.data(); }
  size_t size() const { return bytes_.size(); }

 private:
  std::vector<std::byte> bytes_;
};

}  // namespace tokenyard
