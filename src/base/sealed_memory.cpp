#include "base/sealed_memory.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "tokenyard/error.hpp"

namespace tokenyard {

namespace {

constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW;

[[noreturn]] void fail(const std::string& call) {
  const int code = errno;
  throw OsError(call, code, std::strerror(code));
}

}  // namespace

FileDescriptor make_sealed_memory(const char* name, size_t bytes) {
  FileDescriptor memory(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory) fail(fmt::format("memfd_create of {}", name));
  if (ftruncate(memory.native(), static_cast<off_t>(bytes)) != 0) {
    fail(fmt::format("ftruncate of {} to {} bytes", name, bytes));
  }
  // The last one: a peer that sealed it against writes would end the mappings that come later.
  if (fcntl(memory.native(), F_ADD_SEALS, kSizeSeals | F_SEAL_SEAL) != 0) {
    fail(fmt::format("fcntl(F_ADD_SEALS) of {}", name));
  }
  return memory;
}

std::optional<size_t> sealed_bytes(const FileDescriptor& memory) {
  // In this order: a peer could shrink an unsealed file after its size was read, and then seal it.
  const int seals = fcntl(memory.native(), F_GET_SEALS);
  const bool sealed = seals >= 0 && (seals & kSizeSeals) == kSizeSeals;
  struct stat facts {};
  if (fstat(memory.native(), &facts) != 0) fail("fstat of shared memory");
  if (!sealed) return std::nullopt;
  return static_cast<size_t>(facts.st_size);
}

}  // namespace tokenyard
