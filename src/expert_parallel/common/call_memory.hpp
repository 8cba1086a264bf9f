/// Whether an object's calls still work, and the arena memory that peers write or read during them.
#pragma once

#include <atomic>
#include <memory>
#include <utility>

#include "fabric/abort_flag.hpp"
#include "fabric/arena.hpp"

namespace tokenyard {

/// One an object, shared with all that its calls have left behind. Once failed, for ever failed.
struct Health {
  Health(Accelerator& accelerator, AbortFlag& abort_flag) : cell(accelerator, abort_flag) {}
  bool failed() const { return interrupted || cell.failed(); }

  ErrorRecord cell;  ///< what a kernel found
  /// An exception left a call: nobody knows what its kernel still does.
  std::atomic<bool> interrupted = false;
};

/// Frees its block, in stream order, unless the object has failed: then late data of peers may
/// still land there, and the block stays out of use for as long as the arena lives.
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
  /// As the block's: the rest, which lives on its own.
  std::shared_ptr<CallMemory> split(size_t bytes) {
    return std::make_shared<CallMemory>(block_.split(bytes), health_);
  }

 private:
  ArenaBlock block_;
  std::shared_ptr<const Health> health_;
};

}  // namespace tokenyard
