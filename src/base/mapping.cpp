#include "base/mapping.hpp"

#include <fmt/format.h>
#include <sys/mman.h>

#include <utility>

#include "base/os_failure.hpp"

namespace tokenyard {

namespace {

constexpr int kAccess = PROT_READ | PROT_WRITE;

void* map(void* at, size_t bytes, int access, int flags, int file = -1, size_t offset = 0) {
  void* const base = mmap(at, bytes, access, flags, file, static_cast<off_t>(offset));
  if (base == MAP_FAILED) os_failed(fmt::format("mmap of {} bytes", bytes));
  return base;
}

}  // namespace

Mapping Mapping::anonymous(size_t bytes) {
  return {map(nullptr, bytes, kAccess, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE), bytes};
}

Mapping Mapping::counted(size_t bytes) {
  return {map(nullptr, bytes, kAccess, MAP_PRIVATE | MAP_ANONYMOUS), bytes};
}

Mapping Mapping::with_children(size_t bytes) {
  return {map(nullptr, bytes, kAccess, MAP_SHARED | MAP_ANONYMOUS), bytes};
}

Mapping Mapping::shared(int file, size_t bytes) {
  return {map(nullptr, bytes, kAccess, MAP_SHARED | MAP_NORESERVE, file), bytes};
}

Mapping Mapping::reserved(size_t bytes) {
  return {map(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS), bytes};
}

Mapping::Mapping(Mapping&& other) noexcept
    : base_(std::exchange(other.base_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(base_, other.base_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Mapping::~Mapping() {
  if (base_ != nullptr) munmap(base_, bytes_);
}

void Mapping::map_file(size_t at, size_t bytes, int file, size_t offset) {
  map(base_ + at, bytes, kAccess, MAP_SHARED | MAP_FIXED, file, offset);
}

}  // namespace tokenyard
