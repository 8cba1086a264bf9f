/// Words that tell a caller's kernels which rows of a dispatch have arrived.
#pragma once

#include <memory>

#include "expert_parallel/throughput/host/call_context.hpp"
#include "expert_parallel/throughput/host/dispatch_arguments.hpp"
#include "expert_parallel/throughput/kernels/readiness.hpp"

namespace tokenyard::throughput {

struct WatchedRows {
  Readiness words;  ///< null if the call has no watcher
  std::shared_ptr<CallMemory> memory;

  /// Clears the words of a call in the order of `stream`, and makes the watcher's stream wait for
  /// that.
  static WatchedRows of(const CallContext& context, const DispatchArguments& input, Stream stream,
                        Route::State& route);
};

}  // namespace tokenyard::throughput
