/// Bytes to values and back, little-endian, without trust: a reader never looks past its end, and
/// says in the end whether all was well.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

namespace tokenyard::collectives {

class ByteWriter {
 public:
  template <class Number>
  void number(Number value) {
    static_assert(std::is_unsigned_v<Number>);
    for (size_t i = 0; i < sizeof(Number); ++i)
      bytes_.push_back(static_cast<std::byte>(value >> (8 * i)));
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
  template <class Number>
  Number number() {
    static_assert(std::is_unsigned_v<Number>);
    if (!require(bytes_.size() >= sizeof(Number))) return 0;
    Number value = 0;
    for (size_t i = 0; i < sizeof(Number); ++i)
      value |= static_cast<Number>(static_cast<Number>(bytes_[i]) << (8 * i));
    bytes_ = bytes_.subspan(sizeof(Number));
    return value;
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

}  // namespace tokenyard::collectives
