/// All that a LowLatency object has in one world.
#pragma once

#include <memory>

#include "expert_parallel/low_latency/host/batch_calls.hpp"
#include "expert_parallel/low_latency/host/call_context.hpp"
#include "expert_parallel/low_latency/host/mask_calls.hpp"

namespace tokenyard::low_latency {

class Session {
 public:
  /// Collective. `world`: pinned. `before`: the session that this one follows, whose work has
  /// ended, or null.
  Session(std::shared_ptr<World> world, const LowLatencyOptions& options, const Session* before);

  /// Returns false: ranks that do not answer are masked.
  bool failed() const { return false; }
  bool captured() const { return context.streams.last.captured(); }
  /// Ends the batches in progress. If a CUDA graph has captured calls, its replays fail from now
  /// on, and `take_replay` notices it.
  void retire();
  /// Returns whether there was a replay since `retire` or the last call of this that returned true.
  bool take_replay();
  LowLatency::Metrics metrics() const;

  const std::shared_ptr<World> world;
  CallContext context;
  BatchCalls batch_calls;
  MaskCalls mask_calls{context};

 private:
  void unmask_all();
};

}  // namespace tokenyard::low_latency
