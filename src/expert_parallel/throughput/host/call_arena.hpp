/// The arena as calls of one object use it: memory for rows that come or leave, and addresses that
/// peers can be told.
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

  /// Allocates memory of a call, freed in stream order.
  std::shared_ptr<CallMemory> reserve(size_t bytes, Stream stream,
                                      ArenaEnd end = ArenaEnd::lower) const;
  /// Allocates memory that no caller sees, freed in stream order once the call has been enqueued.
  std::shared_ptr<CallMemory> scratch(size_t bytes, Stream stream, Route::State& route) const;
  /// Has the route keep what a call on it uses, if a CUDA graph captures the call.
  void keep_captured(const std::shared_ptr<CallMemory>& memory, Stream stream,
                     Route::State& route) const;

  /// Returns where memory of a call begins, in kOffsetUnit, as peers are told.
  static uint32_t place_of(CallMemory& memory);
  /// Returns where data lies in the arena, in kOffsetUnit; nothing if peers cannot be told of it.
  std::optional<uint32_t> place_of(const void* data, size_t bytes) const;
  /// Returns where peers can read rows or weights: in place if these lie in the arena, else in a
  /// copy, which is added to `copies`.
  uint32_t readable_by_peers(const void* data, size_t bytes, Stream stream, Route::State& route,
                             std::vector<std::shared_ptr<CallMemory>>& copies) const;

 private:
  Accelerator& accelerator_;
  Arena& arena_;
  const std::shared_ptr<const Health> health_;
};

}  // namespace tokenyard::throughput
