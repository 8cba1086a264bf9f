/// The region of a rank's memory that its peers can reach, and the blocks allocated in it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

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

class Arena {
 public:
  virtual ~Arena() = default;
  /// Returns an uninitialised block, aligned to 256 bytes. Throws InvalidArgument naming
  /// arena_bytes, with the bytes requested and the bytes free, if it does not fit.
  virtual ArenaBlock allocate(size_t bytes, Stream stream, ArenaEnd end = ArenaEnd::lower) = 0;
  virtual size_t capacity() const = 0;
  virtual size_t used() const = 0;
  virtual size_t peak() const = 0;
  virtual std::byte* base() const = 0;
  /// Returns every rank's arena base as this rank's kernels address it; null for ranks without
  /// load/store reach.
  virtual PeerArray<std::byte> bases() const = 0;
  /// Returns one entry of that table to host code; the address is still the kernels'.
  virtual std::byte* base_of(uint32_t rank) const = 0;
};

}  // namespace tokenyard
