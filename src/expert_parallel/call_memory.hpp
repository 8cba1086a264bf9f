/// Arena memory that peers write or read during calls of one object.
#pragma once

#include <memory>
#include <utility>

#include "fabric/alarm_bell.hpp"
#include "fabric/arena.hpp"

namespace tokenyard {

/// Frees its block, in stream order, unless the object's calls have failed: then late data of peers
/// may still land there, and the block stays out of use for as long as the arena lives.
class CallMemory {
 public:
  CallMemory(ArenaBlock block, std::shared_ptr<FailureCell> cell)
      : block_(std::move(block)), cell_(std::move(cell)) {}
  CallMemory(const CallMemory&) = delete;
  CallMemory& operator=(const CallMemory&) = delete;
  ~CallMemory() {
    if (abandoned_ || cell_->failed()) block_.quarantine();
  }

  ArenaBlock& block() { return block_; }
  /// As after a failure, which the cell may not know of yet.
  void abandon() { abandoned_ = true; }

 private:
  ArenaBlock block_;
  std::shared_ptr<FailureCell> cell_;
  bool abandoned_ = false;
};

}  // namespace tokenyard
