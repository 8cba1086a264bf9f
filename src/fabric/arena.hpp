/// The one region of a rank's memory that its peers can reach, and its sub-allocator.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "device/accelerator.hpp"
#include "device/peer.hpp"

namespace tokenyard {

/// A piece of the arena. The owner moves and does not copy; destroying it frees the piece in the
/// order of the stream it was last used on.
class ArenaBlock {
 public:
  ArenaBlock();
  ArenaBlock(ArenaBlock&& other) noexcept;
  ArenaBlock& operator=(ArenaBlock&& other) noexcept;
  ~ArenaBlock();

  std::byte* data() const;
  size_t bytes() const;
  uint64_t offset() const;  ///< from the arena's base: what peers are told
  /// Frees all but the first `bytes`.
  void trim(size_t bytes);
  /// Makes two of it: this keeps the first `bytes`, rounded up to the arena's alignment, and the
  /// rest is returned, or nothing if there is none. Both were used by the streams that this was.
  ArenaBlock split(size_t bytes);
  /// Keep the first, or the last, `bytes` (rounded up to the arena's alignment, from the end of the
  /// piece) and give back the others, which nobody has used since they were allocated: at once, if
  /// nobody used them before either.
  void keep_first(size_t bytes);
  void keep_last(size_t bytes);
  /// Keeps the piece out of use for as long as the arena lives: late data of an aborted call may
  /// still land in it. This object is empty then.
  void quarantine();
  /// Also used on `stream`: reuse waits for what is enqueued there now.
  void record_stream(Stream stream);
  explicit operator bool() const;

  struct State;
  explicit ArenaBlock(std::unique_ptr<State> state);

 private:
  std::unique_ptr<State> state_;
};

/// Where in the arena a piece goes: what stays while much else comes and goes lies at its upper
/// end, where it does not part the room of the others.
enum class ArenaEnd : uint8_t { lower, upper };

class Arena {
 public:
  virtual ~Arena() = default;
  /// 256-byte aligned, not initialised. Throws InvalidArgument naming arena_bytes, with what was
  /// asked for and what is free, if it does not fit.
  virtual ArenaBlock allocate(size_t bytes, Stream stream, ArenaEnd end = ArenaEnd::lower) = 0;
  virtual size_t capacity() const = 0;
  virtual size_t used() const = 0;
  virtual size_t peak() const = 0;
  virtual std::byte* base() const = 0;
  /// Every rank's arena base as this rank's kernels address it. Only for ranks with load/store
  /// reach; null for the others.
  virtual PeerArray<std::byte> bases() const = 0;
  /// The same table for host code (addresses as kernels see them).
  virtual std::byte* base_of(uint32_t rank) const = 0;
};

}  // namespace tokenyard
