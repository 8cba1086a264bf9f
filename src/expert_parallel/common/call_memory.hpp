/// An object's health, and arena memory that peers access during its calls.
#pragma once

#include <atomic>
#include <memory>
#include <utility>

#include "fabric/abort_flag.hpp"
#include "fabric/arena.hpp"
#include "fabric/world_access.hpp"

namespace tokenyard {

/// Health of one session, shared with everything that its calls leave behind. Failure is permanent.
struct Health {
  /// `exchange`: identifies the object that the session is of.
  Health(std::shared_ptr<const World> world, std::shared_ptr<const void> exchange)
      : world(std::move(world)),
        exchange(std::move(exchange)),
        cell(accelerator_of(*this->world), abort_flag_of(*this->world)) {}
  bool failed() const { return interrupted || cell.failed(); }

  const std::shared_ptr<const World> world;  ///< pinned: outlives all that it shares this with
  const std::shared_ptr<const void> exchange;
  ErrorRecord cell;  ///< error record written by kernels
  /// Set when an exception left a call: its kernel may still be running.
  std::atomic<bool> interrupted = false;
};

/// Frees its block in stream order. If the object has failed, peers may still store there late, so
/// the block is quarantined: it is not reused while the arena exists.
class CallMemory {
 public:
  CallMemory(ArenaBlock block, std::shared_ptr<const Health> health)
      : health_(std::move(health)), block_(std::move(block)) {}
  CallMemory(const CallMemory&) = delete;
  CallMemory& operator=(const CallMemory&) = delete;
  ~CallMemory() {
    if (health_->failed()) block_.quarantine();
  }

  ArenaBlock& block() { return block_; }
  /// Splits the block (ArenaBlock::split). Returns the rest, which has its own lifetime.
  std::shared_ptr<CallMemory> split(size_t bytes) {
    return std::make_shared<CallMemory>(block_.split(bytes), health_);
  }

 private:
  std::shared_ptr<const Health> health_;  ///< first: the block goes before the world that it keeps
  ArenaBlock block_;
};

}  // namespace tokenyard
