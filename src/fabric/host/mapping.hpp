/// Owns a range of address space; its destructor unmaps it.
#pragma once

#include <cstddef>

namespace tokenyard {

class Mapping {
 public:
  /// Maps zeroed memory of this process; the system supplies each page when it is first touched.
  static Mapping anonymous(size_t bytes);
  /// Maps the first `bytes` of a file, shared with every other process that maps it.
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
