/// Encodes the payload of a frame, little-endian: a number takes eight bytes; a string is its
/// length, then its bytes.
#pragma once

#include <concepts>
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
  /// Reads a number that must not exceed `largest`.
  template <std::unsigned_integral Number = uint64_t>
  Number up_to(Number largest) {
    const uint64_t value = number();
    ok_ = ok_ && value <= largest;
    return ok_ ? static_cast<Number>(value) : Number{0};
  }
  bool flag() { return up_to<uint8_t>(1) == 1; }
  std::string text();
  bool ok() const { return ok_; }
  bool at_end() const { return rest_.empty(); }

 private:
  std::span<const std::byte> rest_;
  bool ok_ = true;
};

}  // namespace tokenyard::net
