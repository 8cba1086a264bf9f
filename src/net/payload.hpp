/// Encodes the payload of a frame, little-endian: a number takes eight bytes; a string is its
/// length, then its bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tokenyard::net {

class PayloadWriter {
 public:
  void number(uint64_t value);
  void text(std::string_view text);
  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

/// Never reads past the end. Once it would have, every result is 0 or empty and ok() is false.
class PayloadReader {
 public:
  explicit PayloadReader(std::span<const std::byte> bytes) : rest_(bytes) {}
  uint64_t number();
  std::string text();
  bool ok() const { return ok_; }
  bool at_end() const { return rest_.empty(); }

 private:
  std::span<const std::byte> rest_;
  bool ok_ = true;
};

}  // namespace tokenyard::net
