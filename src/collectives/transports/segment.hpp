/// The memory shared by the two ends of a channel: a memfd with two rings, which the initiator
/// makes and the acceptor adopts. It has no name in a file system, and is gone with its last user,
/// even if that was killed.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "base/file_descriptor.hpp"
#include "base/mapping.hpp"
#include "collectives/transports/ring.hpp"
#include "collectives/transports/single_copy.hpp"

namespace tokenyard::collectives {

enum class End : uint8_t { initiator, acceptor };
inline End other(End end) {
  return end == End::initiator ? End::acceptor : End::initiator;
}

struct SegmentHeader {
  alignas(kLineBytes) std::atomic<uint32_t> taken = 0;  ///< 1 once the acceptor has mapped it
  struct Line {
    alignas(kLineBytes) std::atomic<uint32_t> word = 0;
  };
  std::array<Line, 2> asleep;              ///< [End] 1: ring my doorbell when you move a position
  std::array<Line, 2> closed;              ///< [End] 1: this end has closed its channel
  std::array<RingPositions, 2> positions;  ///< [End] of the ring that this end writes
  std::array<SingleCopyWords, 2> single_copies;  ///< [End] of this end's offers
};

class Segment {
 public:
  /// Throws OsError if memory, a descriptor or a limit does not allow it. Pages are committed
  /// before any is touched, so none can be missing later (SIGBUS).
  static Segment make(size_t ring_bytes);
  /// Throws OsError too, and InvalidArgument if the file is not the announced one, or could shrink.
  static Segment adopt(FileDescriptor descriptor, size_t ring_bytes, uint64_t file);

  SegmentHeader& header() const { return *reinterpret_cast<SegmentHeader*>(memory_.base()); }
  RingMemory ring(End writer) const;
  size_t ring_bytes() const { return ring_bytes_; }
  uint64_t file() const { return file_; }
  /// Returns the descriptor, to pass on. The mapping stays without it.
  FileDescriptor take_descriptor() { return std::move(descriptor_); }

 private:
  Segment(FileDescriptor descriptor, size_t ring_bytes, uint64_t file);

  FileDescriptor descriptor_;
  size_t ring_bytes_;
  uint64_t file_;
  Mapping memory_;
};

}  // namespace tokenyard::collectives
