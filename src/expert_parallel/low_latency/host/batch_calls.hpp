/// The host side of dispatch and combine. State changes only once the launch has succeeded: a call
/// that throws has not been made.
#pragma once

#include <atomic>

#include "expert_parallel/low_latency/host/call_arguments.hpp"
#include "expert_parallel/low_latency/host/call_context.hpp"

namespace tokenyard::low_latency {

class BatchCalls {
 public:
  using Handle = Batches::Handle;

  /// `before`: totals to begin with.
  BatchCalls(CallContext& context, const LowLatency::Metrics& before)
      : context_(context), setup_(context.setup), before_(before) {}

  LowLatencyReceived dispatch(const LowLatencyInput& input, const LowLatencyCall& call);
  void combine(const LowLatencyCombine& what, const Handle& handle, const LowLatencyCall& call);
  void receive(const Handle& handle, Stream stream);
  /// Returns the calls made so far, without masks. Any thread may call it.
  LowLatency::Metrics totals() const;

 private:
  LowLatencyReceived send_batch(const DispatchArguments& input, const LowLatencyCall& call);
  /// Returns what a dispatch brings, for its caller.
  LowLatencyReceived received(const DispatchParams& params, const Handle& handle) const;
  /// Enqueues the replacement of a dispatch's choices by places on ranks that take part.
  void launch_placement(const DispatchArguments& input, const CallParams& call,
                        const PlacedChoices& choices, Stream stream);
  void launch_dispatch(const DispatchParams& params, Part part, uint32_t blocks, Stream stream);
  void launch_combine(const CombineParams& params, bool logfmt, Part part, uint32_t blocks,
                      Stream stream);
  /// Launch only the kernels of dispatch and combine, not those of messages to put peers.
  void launch_near_dispatch(DispatchParams params, Part part, uint32_t blocks, Stream stream);
  void launch_near_combine(CombineParams params, bool logfmt, Part part, uint32_t blocks,
                           Stream stream);

  CallContext& context_;
  const Setup& setup_;
  const LowLatency::Metrics before_;
  /// One thread writes, any reads.
  struct Totals {
    std::atomic<uint64_t> dispatch_calls = 0, refused_dispatch_calls = 0, combine_calls = 0,
                          dispatched_tokens = 0;
  } totals_;
};

}  // namespace tokenyard::low_latency
