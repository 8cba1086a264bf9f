/// The region of a rank's memory that its peers can reach, and the blocks allocated in it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "device/accelerator.hpp"
#include "device/peer.hpp"

namespace tokenyard {

/// Owns a block of the arena; movable, not copyable. The destructor frees the block in the order of
/// the streams that used it.
class ArenaBlock {
 public:
  ArenaBlock();
  ArenaBlock(ArenaBlock&& other) noexcept;
  ArenaBlock& operator=(ArenaBlock&& other) noexcept;
  ~ArenaBlock();

  std::byte* data() const;
  size_t bytes() const;
  uint64_t offset() const;  ///< bytes from the arena's base; the form in which peers get it
  /// Frees all but the first `bytes`, rounded up to the arena's alignment, in stream order.
  void trim(size_t bytes);
  /// Splits the block: this object keeps the first `bytes`, rounded up to the arena's alignment,
  /// and the rest is returned (empty if there is none). Every stream that used the block counts as
  /// a user of both parts.
  ArenaBlock split(size_t bytes);
  /// Keep the first or the last `bytes`, rounded up to the arena's alignment, and free the rest,
  /// which must not have been used since its allocation: at once if no stream was still using the
  /// memory when it was allocated, else in stream order.
  void keep_first(size_t bytes);
  void keep_last(size_t bytes);
  /// Empties this object without freeing the block, which stays unused while the arena lives: late
  /// data of an aborted call may still land in it.
  void quarantine();
  /// Records that `stream` uses the block too: reuse waits for all work enqueued there before the
  /// block is freed.
  void record_stream(Stream stream);
  explicit operator bool() const;

  struct State;
  explicit ArenaBlock(std::unique_ptr<State> state);

 private:
  std::unique_ptr<State> state_;
};

/// The end of the arena that a block is taken from. Long-lived blocks go to the upper end, where
/// they do not fragment the space for short-lived ones.
enum class ArenaEnd : uint8_t { lower, upper };

/// Memory that a fabric has mapped for an arena.
struct Region {
  std::shared_ptr<void> memory;  ///< keeps this rank's and the peers' regions mapped
  std::byte* base = nullptr;     ///< start of this rank's region
  size_t bytes = 0;
  std::vector<std::byte*> bases;  ///< [ranks] null for ranks without load/store reach
  uint32_t rank = 0;
};

/// Fabrics differ in how they map the region and its peers' regions, not in how blocks are
/// allocated.
///
/// A block is freed in stream order: the free records an event on every stream that used the block.
/// If only one stream did, later work on that stream may reuse the block at once; all others get it
/// when the events have completed.
class Arena {
 public:
  /// `timeout`: how long an allocation may wait for freed blocks that streams still use.
  Arena(std::shared_ptr<Accelerator> accelerator, Region region, std::chrono::nanoseconds timeout);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  /// Returns an uninitialised block, aligned to 256 bytes. Throws InvalidArgument naming
  /// arena_bytes, with the bytes requested and the bytes free, if it does not fit.
  ArenaBlock allocate(size_t bytes, Stream stream, ArenaEnd end = ArenaEnd::lower);
  size_t capacity() const;
  size_t used() const;
  size_t peak() const;
  std::byte* base() const;
  /// Returns every rank's arena base as this rank's kernels address it; null for ranks without
  /// load/store reach.
  PeerArray<std::byte> bases() const;
  /// Returns one entry of that table to host code; the address is still the kernels'.
  std::byte* base_of(uint32_t rank) const;

 private:
  class Pool;
  friend struct ArenaBlock::State;

  /// Shared with the blocks: a block that outlives the arena keeps the memory mapped.
  std::shared_ptr<Pool> pool_;
};

}  // namespace tokenyard
