/// A range of address space that is unmapped with its owner.
#pragma once

#include <cstddef>

namespace tokenyard {

class Mapping {
 public:
  /// Zeroed memory of this process, taken from the system page by page as it is touched.
  static Mapping anonymous(size_t bytes);
  /// All of a file, shared with whoever else maps it.
  static Mapping shared(int file, size_t bytes);
  ~Mapping();
  Mapping(Mapping&& other) noexcept;
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  Mapping& operator=(Mapping&&) = delete;

  std::byte* base() const { return base_; }
  size_t bytes() const { return bytes_; }

 private:
  Mapping(void* base, size_t bytes);

  std::byte* base_;
  size_t bytes_;
};

}  // namespace tokenyard
