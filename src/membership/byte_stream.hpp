/// Bytes to values and back, little-endian, without trust: a reader never looks past its end, and
/// says in the end whether all was well.
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
  /// A count, then each element by `write(writer, element)`.
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

  /// 0 once anything has failed.
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
  /// What ByteWriter::list wrote: `read(reader)` gives an element, which takes at least
  /// `element_bytes`, so that a false count reserves no more memory than there are bytes.
  template <class Read>
  auto list(size_t element_bytes, Read read) {
    std::vector<decltype(read(*this))> elements;
    const auto count = number<uint32_t>();
    if (!require(count <= bytes_.size() / element_bytes)) return elements;
    elements.reserve(count);
    for (uint32_t i = 0; i < count && good_; ++i) elements.push_back(read(*this));
    return elements;
  }

  /// Notes that the bytes make no sense if `holds` is false. Returns whether all is well so far.
  bool require(bool holds) {
    good_ = good_ && holds;
    if (!good_) bytes_ = {};
    return good_;
  }
  /// Everything was well, and nothing is left.
  bool finished() const { return good_ && bytes_.empty(); }

 private:
  std::span<const std::byte> bytes_;
  bool good_ = true;
};

}  // namespace tokenyard::membership
