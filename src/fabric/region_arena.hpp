/// An Arena over a region that somebody else mapped. Every kind of arena is one of these: fabrics
/// differ in how the region and its peers' regions came to be mapped, not in how pieces are handed
/// out.
///
/// A piece is freed in stream order: freeing records an event on every stream that used it. Work
/// enqueued later on the same stream may have the piece at once; anybody else gets it when the
/// events are done.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "fabric/arena.hpp"

namespace tokenyard {

struct Region {
  std::shared_ptr<void> memory;  ///< keeps this rank's region mapped, and the peers'
  std::byte* base = nullptr;     ///< of this rank's
  size_t bytes = 0;
  std::vector<std::byte*> bases;  ///< [ranks], null where there is no load/store
  uint32_t rank = 0;
};

class RegionArena final : public Arena {
 public:
  /// `timeout`: how long an allocation may wait for freed pieces that streams still use.
  RegionArena(std::shared_ptr<Accelerator> accelerator, Region region,
              std::chrono::nanoseconds timeout);
  ~RegionArena() override;

  ArenaBlock allocate(size_t bytes, Stream stream, ArenaEnd end = ArenaEnd::lower) override;
  size_t capacity() const override;
  size_t used() const override;
  size_t peak() const override;
  std::byte* base() const override;
  PeerArray<std::byte> bases() const override;
  std::byte* base_of(uint32_t rank) const override;

 private:
  class Pool;
  friend struct ArenaBlock::State;

  /// Shared with the pieces: one that outlives the arena keeps the memory mapped.
  std::shared_ptr<Pool> pool_;
};

}  // namespace tokenyard
