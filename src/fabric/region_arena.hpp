/// An Arena over a region that a fabric has mapped. All fabrics use this class: they differ in how
/// they map the region and its peers' regions, not in how blocks are allocated.
///
/// A block is freed in stream order: the free records an event on every stream that used the block.
/// If only one stream did, later work on that stream may reuse the block at once; all others get it
/// when the events have completed.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "fabric/arena.hpp"

namespace tokenyard {

struct Region {
  std::shared_ptr<void> memory;  ///< keeps this rank's and the peers' regions mapped
  std::byte* base = nullptr;     ///< start of this rank's region
  size_t bytes = 0;
  std::vector<std::byte*> bases;  ///< [ranks] null for ranks without load/store reach
  uint32_t rank = 0;
};

class RegionArena final : public Arena {
 public:
  /// `timeout`: how long an allocation may wait for freed blocks that streams still use.
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

  /// Shared with the blocks: a block that outlives the arena keeps the memory mapped.
  std::shared_ptr<Pool> pool_;
};

}  // namespace tokenyard
