/// Serializes values to bytes and back, between ranks of one build: values are copied as they are
/// in memory, after a header with the kind, the number of bytes that follow and their checksum.
///
///     ArchiveWriter writer(kTraceArchive);     ArchiveReader reader(kTraceArchive, bytes, rank);
///     writer(trace.rank, trace.tasks);         reader(trace.rank, trace.tasks);
///     return writer.sealed();                  reader.end();
///
/// Numbers, booleans, strings, lists and optionals are supported here. Any other type lists its
/// fields once, for both directions:
///
///     void visit(auto& archive, MaybeConst<TraceTask> auto& task) {
///       archive(task.name, task.type, task.waits);
///     }
///
/// Argument-dependent lookup finds this function, so it must be in the type's namespace and not in
/// an unnamed one.
///
/// Detects truncation and damage, not forgery. For bytes from untrusted peers or other builds, use
/// net/sealed_frame.hpp or base/byte_stream.hpp.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <ranges>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/fnv1a.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard {

/// Kind of an archive's content.
struct ArchiveKind {
  std::string_view name;  ///< "a rank's trace", for errors
  uint64_t mark;          ///< first word of the archive
};

struct ArchiveHeader {
  uint64_t mark, bytes, checksum;  ///< bytes: number of bytes after the header
};

template <class T, class Type>
concept MaybeConst = std::same_as<std::remove_const_t<T>, Type>;

/// Types that are copied whole: numbers, and structs of them without padding. A bool may not be
/// among the fields, since not every byte is a valid one.
template <class T>
concept Packed = std::is_trivially_copyable_v<T> && std::has_unique_object_representations_v<T> &&
                 !std::same_as<T, bool>;

/// A string or a vector.
template <class T>
concept List = requires(T list) { list.resize(list.size()), list.data(); };

class ArchiveWriter {
 public:
  explicit ArchiveWriter(const ArchiveKind& kind)
      : mark_(kind.mark), bytes_(sizeof(ArchiveHeader)) {}

  void operator()(const auto&... values) { (write(values), ...); }

  /// Returns all bytes, header included. Nothing may be written afterwards.
  std::vector<std::byte> sealed() {
    const auto body = std::span<const std::byte>(bytes_).subspan(sizeof(ArchiveHeader));
    const ArchiveHeader header{mark_, body.size(), fnv1a(body)};
    std::ranges::copy(std::as_bytes(std::span(&header, 1)), bytes_.begin());
    return std::move(bytes_);
  }

 private:
  void write(const auto& value) { visit(*this, value); }
  void write(const Packed auto& value) { append(std::span(&value, 1)); }
  void write(const std::same_as<bool> auto& value) { write(static_cast<uint8_t>(value)); }
  void write(const List auto& list) {
    write(uint64_t{list.size()});
    if constexpr (Packed<std::ranges::range_value_t<decltype(list)>>)
      append(std::span(list));
    else
      for (const auto& item : list) write(item);
  }
  template <class T>
  void write(const std::optional<T>& value) {
    write(value.has_value());
    if (value) write(*value);
  }
  void append(auto items) {
    const auto bytes = std::as_bytes(items);
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }

  uint64_t mark_;
  std::vector<std::byte> bytes_;
};

/// Reads an archive. Every call throws InternalError, which names the expected and the seen value,
/// if the bytes are not as written; values read until then must not be used.
class ArchiveReader {
 public:
  /// `bytes` must outlive this; `from`: the rank that sent them, for errors.
  ArchiveReader(const ArchiveKind& kind, std::span<const std::byte> bytes, uint32_t from)
      : name_(kind.name), from_(from), rest_(bytes) {
    ArchiveHeader header;
    read(header);
    require(header.mark == kind.mark, "its mark", kind.mark, header.mark);
    require(header.bytes == rest_.size(), "bytes", header.bytes, rest_.size());
    const uint64_t checksum = fnv1a(rest_);
    require(header.checksum == checksum, "its checksum", header.checksum, checksum);
  }

  void operator()(auto&... values) { (read(values), ...); }

  /// Checks that no bytes are left.
  void end() const { require(rest_.empty(), "bytes after its end", 0, rest_.size()); }

  /// Throws InternalError unless `right`; for checks that the archive cannot do itself.
  void require(bool right, std::string_view what, uint64_t expected, uint64_t seen) const {
    if (!right)
      throw InternalError(fmt::format("{} from rank {} is corrupted: {}: expected {}, got {}",
                                      name_, from_, what, expected, seen));
  }

 private:
  void read(auto& value) { visit(*this, value); }
  void read(Packed auto& value) { take(std::span(&value, 1)); }
  void read(std::same_as<bool> auto& value) {
    uint8_t byte;
    read(byte);
    require(byte <= 1, "a flag, at most", 1, byte);
    value = byte == 1;
  }
  void read(List auto& list) {
    using Item = std::ranges::range_value_t<decltype(list)>;
    uint64_t items;
    read(items);
    // An item takes at least one byte, so a wrong length cannot cause an oversized allocation.
    const size_t items_max = rest_.size() / (Packed<Item> ? sizeof(Item) : 1);
    require(items <= items_max, "a length, at most", items_max, items);
    list.resize(Packed<Item> ? items : 0);
    if constexpr (Packed<Item>)
      take(std::span(list));
    else
      while (list.size() < items) read(list.emplace_back());
  }
  template <class T>
  void read(std::optional<T>& value) {
    bool given;
    read(given);
    value.reset();
    if (given) read(value.emplace());
  }
  void take(auto items) {
    const auto bytes = std::as_writable_bytes(items);
    require(bytes.size() <= rest_.size(), "bytes to come", bytes.size(), rest_.size());
    std::ranges::copy(rest_.first(bytes.size()), bytes.begin());
    rest_ = rest_.subspan(bytes.size());
  }

  std::string_view name_;
  uint32_t from_;
  std::span<const std::byte> rest_;
};

}  // namespace tokenyard
