/// The arena as used by the calls of one object: memory for rows received or sent, and its offsets
/// as published to peers.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "device/accelerator.hpp"
#include "expert_parallel/common/call_memory.hpp"
#include "expert_parallel/throughput/host/route_state.hpp"
#include "fabric/arena.hpp"

namespace tokenyard::throughput {

class CallArena {
 public:
  CallArena(Accelerator& accelerator, Arena& arena, std::shared_ptr<const Health> health)
      : accelerator_(accelerator), arena_(arena), health_(std::move(health)) {}

  /// Allocates memory for a call; freed in stream order.
  std::shared_ptr<CallMemory> reserve(size_t bytes, Stream stream,
                                      ArenaEnd end = ArenaEnd::lower) const;
  /// Allocates memory that callers never see; freed in stream order once the call is enqueued.
  std::shared_ptr<CallMemory> scratch(size_t bytes, Stream stream, Route::State& route) const;
  /// Makes the route keep `memory` if a CUDA graph captures the call.
  void keep_captured(const std::shared_ptr<CallMemory>& memory, Stream stream,
                     Route::State& route) const;

  /// Returns the offset of a call's memory, in kOffsetUnit, as published to peers.
  static uint32_t place_of(CallMemory& memory);
  /// Returns the offset of data in the arena, in kOffsetUnit; nullopt if no word can express it.
  std::optional<uint32_t> place_of(const void* data, size_t bytes) const;
  /// Returns the offset at which peers can read rows or weights: in place if these are in the
  /// arena, else that of a copy, which is added to `copies`.
  uint32_t readable_by_peers(const void* data, size_t bytes, Stream stream, Route::State& route,
                             std::vector<std::shared_ptr<CallMemory>>& copies) const;

 private:
  Accelerator& accelerator_;
  Arena& arena_;
  const std::shared_ptr<const Health> health_;
};

}  // namespace tokenyard::throughput
