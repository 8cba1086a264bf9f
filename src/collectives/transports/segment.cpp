#include "collectives/transports/segment.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <new>
#include <utility>

#include "base/os_failure.hpp"
#include "base/sealed_memory.hpp"
#include "collectives/transports/cgroup_memory_limit.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard::collectives {

namespace {

// The header has a page of its own: the rings after it must begin on a page, to be mapped twice.
constexpr size_t kHeaderBytes = 4096;
static_assert(sizeof(SegmentHeader) <= kHeaderBytes);
// The peer accesses these words at another address, in another process.
static_assert(std::atomic<uint64_t>::is_always_lock_free);
static_assert(std::atomic<uint32_t>::is_always_lock_free);

constexpr size_t kRingBytesMax = size_t{1} << 32;

[[noreturn]] void segment_failed(const char* call, int code = errno) {
  os_failed(fmt::format("{} (a shared segment)", call), code);
}

size_t file_bytes(size_t ring_bytes) {
  return kHeaderBytes + 2 * ring_bytes;
}
size_t mapped_bytes(size_t ring_bytes) {
  return kHeaderBytes + 4 * ring_bytes;
}

/// Exceeding RLIMIT_FSIZE does not fail, it kills the process by a signal.
void check_file_size_limit(size_t bytes) {
  rlimit limit{};
  if (getrlimit(RLIMIT_FSIZE, &limit) != 0) segment_failed("getrlimit");
  if (limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < bytes)
    segment_failed("RLIMIT_FSIZE", EFBIG);
}

void commit_pages(int descriptor, size_t bytes) {
  int result = 0;
  do {
    result = fallocate(descriptor, 0, 0, static_cast<off_t>(bytes));
  } while (result != 0 && errno == EINTR);
  if (result != 0) segment_failed("fallocate");
}

}  // namespace

Segment Segment::make(size_t ring_bytes) {
  ring_bytes = std::bit_ceil(std::max<size_t>(ring_bytes, 4096));
  if (ring_bytes > kRingBytesMax) segment_failed("ring_bytes", EINVAL);
  const size_t bytes = file_bytes(ring_bytes);
  check_file_size_limit(bytes);
  if (cgroup_memory_limit() < bytes) segment_failed("cgroup memory limit", ENOMEM);
  FileDescriptor descriptor = make_sealed_memory("tokenyard-collectives", bytes);
  commit_pages(descriptor.native(), bytes);
  struct stat facts {};
  if (fstat(descriptor.native(), &facts) != 0) segment_failed("fstat");
  Segment made(std::move(descriptor), ring_bytes, facts.st_ino);
  new (made.memory_.base()) SegmentHeader;
  return made;
}

Segment Segment::adopt(FileDescriptor descriptor, size_t ring_bytes, uint64_t file) {
  const auto bytes = sealed_bytes(descriptor);
  if (!bytes) throw InvalidArgument("segment", "a file whose size is sealed", "another file");
  struct stat facts {};
  if (fstat(descriptor.native(), &facts) != 0) segment_failed("fstat");
  const bool fits = std::has_single_bit(ring_bytes) && ring_bytes >= 4096 &&
                    ring_bytes <= kRingBytesMax && S_ISREG(facts.st_mode) && facts.st_ino == file &&
                    *bytes == file_bytes(ring_bytes);
  if (!fits) throw InvalidArgument("segment", "the file that the request names", "another file");
  Segment adopted(std::move(descriptor), ring_bytes, file);
  adopted.descriptor_.close();
  return adopted;
}

Segment::Segment(FileDescriptor descriptor, size_t ring_bytes, uint64_t file)
    : descriptor_(std::move(descriptor)),
      ring_bytes_(ring_bytes),
      file_(file),
      memory_(Mapping::reserved(mapped_bytes(ring_bytes))) {
  memory_.map_file(0, kHeaderBytes, descriptor_.native(), 0);
  for (size_t ring = 0; ring < 2; ++ring) {
    const size_t offset = kHeaderBytes + ring * ring_bytes;
    for (size_t copy = 0; copy < 2; ++copy) {
      const size_t at = kHeaderBytes + (2 * ring + copy) * ring_bytes;
      memory_.map_file(at, ring_bytes, descriptor_.native(), offset);
    }
  }
}

RingMemory Segment::ring(End writer) const {
  const auto index = static_cast<size_t>(writer);
  return {&header().positions[index], memory_.base() + kHeaderBytes + 2 * index * ring_bytes_,
          ring_bytes_};
}

}  // namespace tokenyard::collectives
