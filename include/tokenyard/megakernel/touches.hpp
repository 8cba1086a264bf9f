/// The memory that a task touches through its arguments, as its type states it next to its body:
///
///     static void touches(Touches& touches, const Args& args) {
///       touches.reads("from", args.from, args.count);
///       touches.writes("to", args.to, args.count);
///     }
///
/// Graph::add compares this statement with the memory that the arguments name, and compile()
/// compares it with the regions that the task declares.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "tokenyard/megakernel/event.hpp"

namespace tokenyard {
struct BFloat16;
}

namespace tokenyard::megakernel {

/// A number of elements. Sums and products saturate at 2^64 - 1.
class Extent {
 public:
  Extent(uint64_t count) : count_(count) {}
  Extent operator*(uint64_t by) const {
    uint64_t product = 0;
    return __builtin_mul_overflow(count_, by, &product) ? UINT64_MAX : product;
  }
  Extent operator+(uint64_t more) const {
    uint64_t sum = 0;
    return __builtin_add_overflow(count_, more, &sum) ? UINT64_MAX : sum;
  }
  uint64_t count() const { return count_; }

 private:
  uint64_t count_;
};

enum class AccessKind : uint8_t { read, write, add, stream };
/// Returns "reads", "writes", "adds to" or "streams".
const char* verb(AccessKind access);

/// `rows` ranges of `row_bytes` bytes, whose starts are `stride` bytes apart.
struct TouchedRange {
  const char* argument;
  AccessKind access;
  uint64_t address;
  uint64_t row_bytes, rows, stride;
  /// The contents of memory decide which bytes from `address` on are touched; at least `row_bytes`
  /// must exist.
  bool among;
  uint32_t alignment;
  const char* element;  ///< NumPy's name for the element type; empty: any

  uint64_t bytes() const;  ///< from the first byte to the last, gaps included
};

/// The memory behind an argument, where the caller knows more than its address.
struct ArgPiece {
  std::string_view argument;
  uint64_t address, bytes;
  std::string_view dtype;  ///< of the array there; empty: any
};

class Touches {
 public:
  /// `type` and `task` are names, for errors.
  Touches(std::string_view type, std::string_view task) : type_(type), task_(task) {}

  // ---- statements, by task types

  template <class T>
  void reads(const char* argument, const T* at, Extent count) {
    note<T>(argument, AccessKind::read, at, count);
  }
  template <class T>
  void writes(const char* argument, const T* at, Extent count) {
    note<T>(argument, AccessKind::write, at, count);
  }
  template <class T>
  void adds(const char* argument, const T* at, Extent count) {
    note<T>(argument, AccessKind::add, at, count);
  }
  /// Loaded ahead of the task's waits.
  template <class T>
  void streams(const char* argument, const T* at, Extent count) {
    note<T>(argument, AccessKind::stream, at, count, kBulkAlignment);
  }
  /// `rows` rows of `count` elements, whose starts are `stride` elements apart.
  template <class T>
  void reads_rows(const char* argument, const T* at, Extent count, uint64_t rows, uint64_t stride) {
    if (count.count() == 0 || rows == 0) return;
    note<T>(argument, AccessKind::read, at, count);
    list_.back().rows = rows;
    list_.back().stride = (Extent(stride) * sizeof(T)).count();
  }
  /// Some elements from `at` on, decided by the contents of memory. At least `least` must exist.
  template <class T>
  void reads_among(const char* argument, const T* at, Extent least) {
    note<T>(argument, AccessKind::read, at, least);
    list_.back().among = true;
  }
  template <class T>
  void writes_among(const char* argument, const T* at, Extent least) {
    note<T>(argument, AccessKind::write, at, least);
    list_.back().among = true;
  }
  /// The body loads the range stated last sixteen bytes at a time.
  void aligned() { list_.back().alignment = kBulkAlignment; }
  /// The range stated last may hold elements of any type.
  void of_any_type() { list_.back().element = ""; }
  /// The task calls Context::expect or Context::signal for this event.
  void expects(const char* argument, Event event) { expected_.push_back({argument, event, 0, ""}); }
  void signals(const char* argument, Event event, const char* rank_argument, uint32_t rank) {
    signalled_.push_back({argument, event, rank, rank_argument});
  }
  /// The task's arguments repeat MegakernelOptions::unit_bytes, which must be at least `bytes`.
  void unit_bytes(const char* argument, uint32_t bytes);
  /// Throws InvalidArgument unless `holds`.
  void require(bool holds, const char* argument, const std::string& expected, double seen) const;

  // ---- results, for the checks

  struct Named {
    const char* argument;
    Event event;
    uint32_t rank;
    const char* rank_argument;
  };
  const std::vector<TouchedRange>& list() const { return list_; }
  const std::vector<Named>& expected() const { return expected_; }
  const std::vector<Named>& signalled() const { return signalled_; }
  uint32_t largest_unit() const { return unit_bytes_; }
  /// Throws InvalidArgument if an argument names no memory, less than the task touches, or memory
  /// of another type. `pieces`: the memory of all arguments that name any.
  void check(const std::vector<ArgPiece>& pieces) const;
  /// Throws InvalidArgument if an argument through which the task touches memory is null or
  /// misaligned.
  void check_addresses() const;
  /// Returns, for example, "parts of a reduce task 'sum'".
  std::string name_of(std::string_view argument) const;

 private:
  static constexpr uint32_t kBulkAlignment = 16;

  template <class T>
  static constexpr const char* element_name() {
    if constexpr (std::is_same_v<T, float>) return "float32";
    if constexpr (std::is_same_v<T, uint32_t>) return "uint32";
    if constexpr (std::is_same_v<T, uint64_t>) return "uint64";
    if constexpr (std::is_same_v<T, BFloat16>) return "bfloat16";
    return "";
  }
  template <class T>
  void note(const char* argument, AccessKind access, const T* at, Extent count,
            uint32_t alignment = alignof(T)) {
    list_.push_back({.argument = argument,
                     .access = access,
                     .address = reinterpret_cast<uint64_t>(at),
                     .row_bytes = (count * sizeof(T)).count(),
                     .rows = 1,
                     .stride = 0,
                     .among = false,
                     .alignment = alignment,
                     .element = element_name<T>()});
  }

  std::string_view type_, task_;
  std::vector<TouchedRange> list_;
  std::vector<Named> expected_, signalled_;
  uint32_t unit_bytes_ = 0;
};

/// Returns the address of an element, for statements; null for a null array.
template <class T>
T* element_at(T* array, uint64_t index) {
  const auto address = reinterpret_cast<uintptr_t>(array);
  return address == 0 ? nullptr : reinterpret_cast<T*>(address + index * sizeof(T));
}

/// Returns, for example, "parts of a reduce task 'sum'"; `task` may be empty.
std::string argument_name(std::string_view argument, std::string_view type, std::string_view task);

}  // namespace tokenyard::megakernel
