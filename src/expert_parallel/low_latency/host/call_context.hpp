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
  /// Legacy of a session for the next one of its object.
  struct Legacy {
    uint32_t last_epoch;  ///< of its calls, whose work has ended
    const ExpertMap& experts;
  };
  /// Collective. `before`: on a rank that has made calls of this object.
  CallContext(World& world, const LowLatencyOptions& options, const std::optional<Legacy>& before);
  /// Keeps the window unused: a peer may still store there.
  ~CallContext();
  CallContext(const CallContext&) = delete;
  CallContext& operator=(const CallContext&) = delete;

  /// Returns the kernel parameters common to all kinds of calls.
  CallParams params(const LowLatencyCall& call);
  void require_open() const;
  /// Throws unless a call may be made: the object is open and the world has not been cancelled.
  void require_calls() const;
  /// Throws the faults found by calls, as far as the host can see them.
  void check();
  /// Waits for all work enqueued on `stream`; its owner may then destroy it.
  void wait(Stream stream);
  /// Waits until this rank's messages and credits have landed. Throws PeerTimeout after the world's
  /// timeout, but not if `despite_masks` and a rank is masked, which may take nothing any more.
  void drain_messages(bool despite_masks) const;
  /// Collective; frees the window.
  void close(bool of_before);

  const Setup setup;
  PeerWindows windows;  ///< before `batches`, which may not fit in memory if this does not
  Epochs epochs;
  Findings findings;
  RankMasks masks;
  CallStreams streams;
  std::optional<PutPeers> put_peers;  ///< if there are any, or of any other rank
  Batches batches;
  ExpertMap experts;
  std::optional<Log> log;        ///< of masks, if the world follows a job
  std::vector<uint32_t> joined;  ///< ranks that had made no calls when this was made, if others had
  bool closed = false;

 private:
  /// Returns words per rank for a call that leaves some out, or null. The words are those of all
  /// calls, in the order of streams: once a call has begun, the ranks that it leaves out are
  /// masked.
  const uint32_t* left_out(const LowLatencyCall& call);

  const DeviceMemory left_out_;
};

}  // namespace tokenyard::low_latency
