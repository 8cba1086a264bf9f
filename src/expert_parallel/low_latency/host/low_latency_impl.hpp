/// The parts of a LowLatency object.
#pragma once

#include "expert_parallel/low_latency/host/batch_calls.hpp"
#include "expert_parallel/low_latency/host/call_context.hpp"
#include "expert_parallel/low_latency/host/mask_calls.hpp"

namespace tokenyard {

struct LowLatency::Impl {
  /// Collective.
  Impl(World& world, const LowLatencyOptions& options) : context(world, options) {}

  low_latency::CallContext context;
  low_latency::BatchCalls batch_calls{context};
  low_latency::MaskCalls mask_calls{context};
};

}  // namespace tokenyard
