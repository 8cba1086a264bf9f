/// The state that every call of one LowLatency object works with.
#pragma once

#include "expert_parallel/low_latency/host/batches.hpp"
#include "expert_parallel/low_latency/host/call_streams.hpp"
#include "expert_parallel/low_latency/host/epochs.hpp"
#include "expert_parallel/low_latency/host/findings.hpp"
#include "expert_parallel/low_latency/host/peer_windows.hpp"
#include "expert_parallel/low_latency/host/rank_masks.hpp"
#include "expert_parallel/low_latency/host/setup.hpp"

namespace tokenyard::low_latency {

struct CallContext {
  /// Collective.
  CallContext(World& world, const LowLatencyOptions& options);
  /// Keeps the window out of use: a peer may still store there.
  ~CallContext();
  CallContext(const CallContext&) = delete;
  CallContext& operator=(const CallContext&) = delete;

  /// Returns what kernels are told of a call, without what only its kind has.
  CallParams params(const LowLatencyCall& call);
  void require_open() const;
  /// Throws unless a call may be made: the object is open, and nobody has cancelled.
  void require_calls() const;
  /// Throws what calls have found wrong, as far as the host can see.
  void check();
  /// Waits until what was enqueued on `stream` has ended; its owner may then free it.
  void wait(Stream stream);
  /// Collective: gives the window back.
  void close();

  const Setup setup;
  PeerWindows windows;  ///< before batches, which may not fit the machine where it does not fit
  Epochs epochs;
  Findings findings;
  RankMasks masks;
  CallStreams streams;
  Batches batches;
  bool closed = false;
};

}  // namespace tokenyard::low_latency
