/// Serializes values, little-endian, for peers that may not be trusted or are of another build. A
/// type lists its fields once, for both directions:
///
///     void visit(auto& stream, MaybeConst<View> auto& view) {
///       stream(view.epoch, view.slots);
///       stream.require(view.slots <= kSlotsMax);
///     }
///
/// Argument-dependent lookup finds this function, so it must be in the type's namespace and not in
/// an unnamed one. `to_bytes(view)` and `from_bytes<View>(bytes)` use it.
///
/// The reader never reads past the end of its input, reserves no more memory than there are bytes,
/// and reports at the end whether everything was valid. Between ranks of one build,
/// base/archive.hpp needs less.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/archive.hpp"
#include "base/little_endian.hpp"

namespace tokenyard {

class ByteWriter {
 public:
  static constexpr bool kReads = false;

  /// Writes each value: a number in as many bytes as its type has, a bool in one.
  void operator()(const auto&... values) { (write(values), ...); }
  /// Writes a number in eight bytes.
  void wide(const auto& number, uint64_t = 0) { write(static_cast<uint64_t>(number)); }
  /// Writes the number of bytes in eight bytes, then the string or vector of bytes.
  void text(const auto& bytes, uint64_t = 0) {
    wide(bytes.size());
    append(std::as_bytes(std::span(bytes)));
  }
  /// Writes the number of elements, then each by `each(writer, element)`.
  void list(const auto& elements, size_t, auto each) {
    write(static_cast<uint32_t>(elements.size()));
    for (const auto& element : elements) each(*this, element);
  }
  /// Only a reader checks.
  void require(bool) {}
  std::vector<std::byte> take() { return std::move(bytes_); }
  size_t size() const { return bytes_.size(); }

 private:
  template <class Value>
  void write(const Value& value) {
    if constexpr (std::same_as<Value, bool>)
      write(static_cast<uint8_t>(value));
    else if constexpr (std::unsigned_integral<Value>)
      append(little_endian(value));
    else
      visit(*this, value);
  }
  void append(const auto& bytes) { bytes_.insert(bytes_.end(), bytes.begin(), bytes.end()); }

  std::vector<std::byte> bytes_;
};

/// Reads what a ByteWriter has written. Once anything has failed, every further result is 0, false
/// or empty.
class ByteReader {
 public:
  static constexpr bool kReads = true;

  explicit ByteReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  void operator()(auto&... values) { (read(values), ...); }
  /// Requires that the number does not exceed `largest`.
  template <class Number>
  void wide(Number& number, uint64_t largest = std::numeric_limits<Number>::max()) {
    uint64_t value;
    read(value);
    require(value <= largest);
    number = static_cast<Number>(good_ ? value : 0);
  }
  /// Requires that there are no more than `largest` bytes.
  void text(auto& bytes, uint64_t largest = std::numeric_limits<uint64_t>::max()) {
    uint64_t size;
    wide(size, largest);
    require(size <= bytes_.size());
    bytes.resize(good_ ? size : 0);
    std::ranges::copy(bytes_.first(bytes.size()), std::as_writable_bytes(std::span(bytes)).begin());
    bytes_ = bytes_.subspan(bytes.size());
  }
  /// An element takes at least `element_bytes`, so a false count cannot reserve more memory than
  /// there are bytes.
  void list(auto& elements, size_t element_bytes, auto each) {
    uint32_t count;
    read(count);
    require(count <= bytes_.size() / element_bytes);
    elements.clear();
    if (good_) elements.reserve(count);
    while (good_ && elements.size() < count) each(*this, elements.emplace_back());
  }
  /// Marks the input as invalid if `holds` is false.
  void require(bool holds) {
    good_ = good_ && holds;
    if (!good_) bytes_ = {};
  }
  /// Returns whether the input was valid and has been read to its end.
  bool finished() const { return good_ && bytes_.empty(); }

 private:
  template <class Value>
  void read(Value& value) {
    if constexpr (std::same_as<Value, bool>) {
      uint8_t flag;
      read(flag);
      require(flag <= 1);
      value = good_ && flag == 1;
    } else if constexpr (std::unsigned_integral<Value>) {
      require(bytes_.size() >= sizeof(Value));
      value = good_ ? take_number<Value>(bytes_) : 0;
    } else {
      visit(*this, value);
    }
  }

  std::span<const std::byte> bytes_;
  bool good_ = true;
};

/// Reads or writes whether there is a value, by `flag(stream, bool)`, then the value, if there is
/// one, by `each(stream, value)`.
void visit_optional(auto& stream, auto& optional, auto flag, auto each) {
  bool given = optional.has_value();
  flag(stream, given);
  if constexpr (std::remove_reference_t<decltype(stream)>::kReads) {
    optional.reset();
    if (given) optional.emplace();
  }
  if (optional) each(stream, *optional);
}

std::vector<std::byte> to_bytes(const auto& value) {
  ByteWriter writer;
  writer(value);
  return writer.take();
}

/// Returns nothing if the bytes are not a whole valid value.
template <class Value>
std::optional<Value> from_bytes(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  std::optional<Value> value(std::in_place);
  reader(*value);
  if (!reader.finished()) value.reset();
  return value;
}

}  // namespace tokenyard
