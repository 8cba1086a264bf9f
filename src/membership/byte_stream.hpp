/// Serializes values, little-endian. The reader does not trust its input: it never reads past the
/// end, and reports at the end whether everything was valid.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/little_endian.hpp"

namespace tokenyard::membership {

class ByteWriter {
 public:
  void number(std::unsigned_integral auto value) {
    const auto bytes = little_endian(value);
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }
  void flag(bool value) { number(uint8_t{value}); }
  /// Writes the number of elements, then each by `write(writer, element)`.
  template <class Element, class Write>
  void list(const std::vector<Element>& elements, Write write) {
    number(static_cast<uint32_t>(elements.size()));
    for (const Element& element : elements) write(*this, element);
  }
  std::vector<std::byte> take() { return std::move(bytes_); }
  size_t size() const { return bytes_.size(); }

 private:
  std::vector<std::byte> bytes_;
};

class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  /// Returns 0 once anything has failed.
  template <std::unsigned_integral Number>
  Number number() {
    if (!require(bytes_.size() >= sizeof(Number))) return 0;
    return take_number<Number>(bytes_);
  }
  bool flag() {
    const auto value = number<uint8_t>();
    require(value <= 1);
    return value == 1;
  }
  /// Reads what ByteWriter::list wrote, each element by `read(reader)`. An element takes at least
  /// `element_bytes`, so a false count cannot reserve more memory than there are bytes.
  template <class Read>
  auto list(size_t element_bytes, Read read) {
    std::vector<decltype(read(*this))> elements;
    const auto count = number<uint32_t>();
    if (!require(count <= bytes_.size() / element_bytes)) return elements;
    elements.reserve(count);
    for (uint32_t i = 0; i < count && good_; ++i) elements.push_back(read(*this));
    return elements;
  }

  /// Marks the input as invalid if `holds` is false. Returns whether it is valid so far.
  bool require(bool holds) {
    good_ = good_ && holds;
    if (!good_) bytes_ = {};
    return good_;
  }
  /// Returns whether the input was valid and has been read to its end.
  bool finished() const { return good_ && bytes_.empty(); }

 private:
  std::span<const std::byte> bytes_;
  bool good_ = true;
};

}  // namespace tokenyard::membership
