/// The memory that the two ends of a channel share: a memfd of two rings, which one end makes and
/// the other adopts. Nothing of it has a name in a file system; it is gone with its last user, even
/// one that was killed.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "base/file_descriptor.hpp"
#include "collectives/transports/ring.hpp"
#include "collectives/transports/single_copy.hpp"

namespace tokenyard::collectives {

enum class End : uint8_t { initiator, acceptor };
inline End other(End end) {
  return end == End::initiator ? End::acceptor : End::initiator;
}

struct SegmentHeader {
  alignas(kLineBytes) std::atomic<uint32_t> taken = 0;  ///< 1 once the taker has mapped it
  struct Line {
    alignas(kLineBytes) std::atomic<uint32_t> word = 0;
  };
  std::array<Line, 2> asleep;                    ///< [End] 1: ring my bell when you move a position
  std::array<Line, 2> closed;                    ///< [End] 1: this end has closed its channel
  std::array<RingPositions, 2> positions;        ///< [End] of the ring this end writes
  std::array<SingleCopyWords, 2> single_copies;  ///< [End] of what this end lends
};

class Segment {
 public:
  /// Throws OsError where the system will not have it: no memory, no descriptor, a limit. Its pages
  /// are there before anybody touches one, so that none can be missing then (SIGBUS).
  static Segment make(size_t ring_bytes);
  /// Throws OsError as well, and InvalidArgument if it is not the file it should be, or could
  /// shrink.
  static Segment adopt(FileDescriptor descriptor, size_t ring_bytes, uint64_t file);

  Segment(Segment&& other) noexcept;
  Segment& operator=(Segment&&) = delete;
  ~Segment();

  SegmentHeader& header() const { return *reinterpret_cast<SegmentHeader*>(memory_); }
  RingMemory ring(End writer) const;
  size_t ring_bytes() const { return ring_bytes_; }
  uint64_t file() const { return file_; }
  /// Of whoever hands it over. The mapping stays without it.
  FileDescriptor take_descriptor() { return std::move(descriptor_); }

 private:
  Segment(FileDescriptor descriptor, size_t ring_bytes, uint64_t file);

  FileDescriptor descriptor_;
  size_t ring_bytes_;
  uint64_t file_;
  std::byte* memory_ = nullptr;
};

}  // namespace tokenyard::collectives
