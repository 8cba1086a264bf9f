/// An object's health, and arena memory that peers access during its calls.
#pragma once

#include <atomic>
#include <memory>
#include <utility>

#include "fabric/abort_flag.hpp"
#include "fabric/arena.hpp"

namespace tokenyard {

/// Health of one object, shared with everything that its calls leave behind. Failure is permanent.
struct Health {
  Health(Accelerator& accelerator, AbortFlag& abort_flag) : cell(accelerator, abort_flag) {}
  bool failed() const { return interrupted || cell.failed(); }

  ErrorRecord cell;  ///< error record written by kernels
  /// Set when an exception left a call: its kernel may still be running.
  std::atomic<bool> interrupted = false;
};

/// Frees its block in stream order. If the object has failed, peers may still store there late, so
/// the block is quarantined: it is not reused while the arena exists.
class CallMemory {
 public:
  CallMemory(ArenaBlock block, std::shared_ptr<const Health> health)
      : block_(std::move(block)), health_(std::move(health)) {}
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
  ArenaBlock block_;
  std::shared_ptr<const Health> health_;
};

}  // namespace tokenyard
