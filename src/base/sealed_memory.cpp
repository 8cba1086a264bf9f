#include "base/sealed_memory.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/os_failure.hpp"

namespace tokenyard {

namespace {

constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW;

}  // namespace

FileDescriptor make_sealed_memory(const char* name, size_t bytes) {
  FileDescriptor memory(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory) os_failed(fmt::format("memfd_create of {}", name));
  if (ftruncate(memory.native(), static_cast<off_t>(bytes)) != 0) {
    os_failed(fmt::format("ftruncate of {} to {} bytes", name, bytes));
  }
  // The last one: a peer that sealed it against writes would end the mappings that come later.
  if (fcntl(memory.native(), F_ADD_SEALS, kSizeSeals | F_SEAL_SEAL) != 0) {
    os_failed(fmt::format("fcntl(F_ADD_SEALS) of {}", name));
  }
  return memory;
}

std::optional<size_t> sealed_bytes(const FileDescriptor& memory) {
  // In this order: a peer could shrink an unsealed file after its size was read, and then seal it.
  const int seals = fcntl(memory.native(), F_GET_SEALS);
  const bool sealed = seals >= 0 && (seals & kSizeSeals) == kSizeSeals;
  struct stat facts {};
  if (fstat(memory.native(), &facts) != 0) os_failed("fstat of shared memory");
  if (!sealed) return std::nullopt;
  return static_cast<size_t>(facts.st_size);
}

}  // namespace tokenyard
