/// Owns a range of address space; its destructor unmaps it.
#pragma once

#include <cstddef>

namespace tokenyard {

/// A default one, and one that was moved from, is empty. All functions that make one throw OsError.
class Mapping {
 public:
  /// Maps zeroed memory of this process; the system supplies each page when it is first touched,
  /// and does not count the others against its commit limit.
  static Mapping anonymous(size_t bytes);
  /// The same, but counted in full, so that the system may refuse it here.
  static Mapping counted(size_t bytes);
  /// Maps zeroed memory that this process shares with the children that it forks later.
  static Mapping with_children(size_t bytes);
  /// Maps the first `bytes` of a file, shared with every other process that maps it.
  static Mapping shared(int file, size_t bytes);
  /// Reserves addresses without memory, over which map_file maps parts of files.
  static Mapping reserved(size_t bytes);

  Mapping() = default;
  ~Mapping();
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;

  /// Replaces `bytes` from `at`, within this range, by those of a file from `offset`, shared with
  /// every other process that maps them. All are multiples of a page.
  void map_file(size_t at, size_t bytes, int file, size_t offset);

  std::byte* base() const { return base_; }
  size_t bytes() const { return bytes_; }
  explicit operator bool() const { return base_ != nullptr; }

 private:
  Mapping(void* base, size_t bytes) : base_(static_cast<std::byte*>(base)), bytes_(bytes) {}

  std::byte* base_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace tokenyard
