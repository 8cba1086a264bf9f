#include "fabric/host/mapping.hpp"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "tokenyard/error.hpp"

namespace tokenyard {

namespace {

void* mapped(size_t bytes, int flags, int file) {
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags | MAP_NORESERVE, file, 0);
  if (base == MAP_FAILED) {
    const int code = errno;
    throw OsError(fmt::format("mmap of {} bytes", bytes), code, std::strerror(code));
  }
  return base;
}

}  // namespace

Mapping Mapping::anonymous(size_t bytes) {
  return {mapped(bytes, MAP_PRIVATE | MAP_ANONYMOUS, -1), bytes};
}

Mapping Mapping::shared(int file, size_t bytes) {
  return {mapped(bytes, MAP_SHARED, file), bytes};
}

Mapping::Mapping(void* base, size_t bytes) : base_(static_cast<std::byte*>(base)), bytes_(bytes) {}

Mapping::Mapping(Mapping&& other) noexcept
    : base_(std::exchange(other.base_, nullptr)), bytes_(other.bytes_) {}

Mapping::~Mapping() {
  if (base_ != nullptr) munmap(base_, bytes_);
}

}  // namespace tokenyard
