/// Values to bytes and back, for ranks of one build: everything goes as it lies in memory, behind a
/// header that says what this is, how many bytes follow and what their checksum is.
///
///     ArchiveWriter writer(kTraceArchive);     ArchiveReader reader(kTraceArchive, bytes, rank);
///     writer(trace.rank, trace.tasks);         reader(trace.rank, trace.tasks);
///     return writer.sealed();                  reader.end();
///
/// Numbers, flags, texts, lists and optionals are known here. Any other type says once, for both
/// ways, which of its fields travel:
///
///     void visit(auto& archive, MaybeConst<TraceTask> auto& task) {
///       archive(task.name, task.type, task.waits);
///     }
///
/// That is found by the type's namespace, so it stands there and not in an unnamed one.
///
/// Finds what was cut off or damaged, not what was forged. Where bytes may come from strangers or
/// from another build: fabric/tcp/frame.hpp, membership/byte_stream.hpp.
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

/// What an archive holds.
struct ArchiveKind {
  std::string_view name;  ///< "a rank's trace", for errors
  uint64_t mark;          ///< its first word
};

struct ArchiveHeader {
  uint64_t mark, bytes, checksum;  ///< bytes: after the header
};

template <class T, class Type>
concept MaybeConst = std::same_as<std::remove_const_t<T>, Type>;

/// Copied whole: numbers, and structs of them without padding. No flag may be among their fields,
/// since not every byte is one.
template <class T>
concept Packed = std::is_trivially_copyable_v<T> && std::has_unique_object_representations_v<T> &&
                 !std::same_as<T, bool>;

/// A text or a vector.
template <class T>
concept List = requires(T list) { list.resize(list.size()), list.data(); };

class ArchiveWriter {
 public:
  explicit ArchiveWriter(const ArchiveKind& kind)
      : mark_(kind.mark), bytes_(sizeof(ArchiveHeader)) {}

  void operator()(const auto&... values) { (write(values), ...); }

  /// Header and all. Nothing may be written afterwards.
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

/// All of it throws InternalError, which says what was expected and what was seen, if the bytes are
/// not as they were written; what has been read until then must not be used.
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

  /// Nothing may be left.
  void end() const { require(rest_.empty(), "bytes after its end", 0, rest_.size()); }

  /// For what the archive itself cannot know to be wrong.
  void require(bool right, std::string_view what, uint64_t expected, uint64_t seen) const {
    if (!right)
      throw InternalError(fmt::format("{} came garbled from rank {}: {}: expected {}, got {}",
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
    // No item takes less than a byte, so a wrong length makes no room for more than has come.
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
