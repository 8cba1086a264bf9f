/// The host side of dispatch and combine. State changes only once the launch has succeeded: a call
/// that throws has not been made.
#pragma once

#include "expert_parallel/low_latency/host/call_arguments.hpp"
#include "expert_parallel/low_latency/host/call_context.hpp"

namespace tokenyard::low_latency {

class BatchCalls {
 public:
  using Handle = Batches::Handle;

  explicit BatchCalls(CallContext& context) : context_(context), setup_(context.setup) {}

  LowLatencyReceived dispatch(const LowLatencyInput& input, const LowLatencyCall& call);
  void combine(const LowLatencyCombine& what, const Handle& handle, const LowLatencyCall& call);
  void receive(const Handle& handle, Stream stream);
  /// Returns the calls made so far.
  const LowLatency::Metrics& totals() const { return totals_; }

 private:
  LowLatencyReceived send_batch(const DispatchArguments& input, const LowLatencyCall& call);
  /// Returns what a dispatch brings, for its caller.
  LowLatencyReceived received(const DispatchParams& params, const Handle& handle) const;
  void launch_dispatch(DispatchParams params, Part part, uint32_t blocks, Stream stream);
  void launch_combine(CombineParams params, bool logfmt, Part part, uint32_t blocks, Stream stream);

  CallContext& context_;
  const Setup& setup_;
  LowLatency::Metrics totals_{};  ///< without masks
};

}  // namespace tokenyard::low_latency
