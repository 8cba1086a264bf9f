/// The ranks that a LowLatency object reaches by put, and its launches of their messages
/// (kernels/messages.hpp). An object has one if there are such ranks.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "device/device_memory.hpp"
#include "expert_parallel/low_latency/host/call_streams.hpp"
#include "expert_parallel/low_latency/host/mirrors.hpp"
#include "expert_parallel/low_latency/host/setup.hpp"
#include "expert_parallel/low_latency/kernels/combine.hpp"
#include "expert_parallel/low_latency/kernels/dispatch.hpp"
#include "expert_parallel/low_latency/kernels/messages.hpp"
#include "fabric/arena.hpp"
#include "fabric/network/claimed_queues.hpp"
#include "fabric/network/network_memory.hpp"

namespace tokenyard::low_latency {

/// Returns the layout of messages. `peers`: the most of any rank.
MessageLayout message_layout(const LowLatencyOptions& options, uint32_t peers);

class PutPeers {
 public:
  /// Collective among ranks of which some reach others by put; one that reaches none has no peers.
  /// `epoch`: after which all ranks count their calls. Throws Unsupported, on all ranks alike, if a
  /// queue is missing.
  PutPeers(const Setup& setup, const CallStreams& streams, uint32_t epoch);
  /// Keeps memory that peers may still write, unless `give_back` was called.
  ~PutPeers();
  /// Collective: begins anew in other memory, beside ranks of which some have made objects of their
  /// own. All ranks have drained their requests, so that none writes the memory of before, which is
  /// given back.
  void begin_anew(const CallStreams& streams, uint32_t epoch);
  PutPeers(const PutPeers&) = delete;
  PutPeers& operator=(const PutPeers&) = delete;

  /// Returns the windows' addresses with those of put peers replaced by their mirrors'.
  std::vector<std::byte*> with_mirrors(std::span<std::byte* const> windows) const;

  /// Enqueue the messages of a call's parts, and of the weights of a combine, which its sending
  /// part needs. `blocks`: at most; all are resident at once.
  void launch_rows(const DispatchParams& call, Part part, uint32_t blocks, Stream stream) const;
  void launch_weights(const CombineParams& call, uint32_t blocks, Stream stream) const;
  void launch_sums(const CombineParams& call, bool logfmt, Part part, uint32_t blocks,
                   Stream stream) const;

  /// Says that no peer writes here any more.
  void give_back();
  /// Makes kernels that a CUDA graph has captured put nothing.
  void retire(const CallStreams& streams) const;

 private:
  MessagesParams messages(Channel channel, const CallParams& call, Part part) const;
  void launch_messages(const MessagesParams& params, uint32_t blocks, Stream stream) const;
  /// Returns zeroed memory of messages. Collective.
  std::unique_ptr<NetworkMemory> zeroed_memory(const CallStreams& streams) const;
  void introduce(const CallStreams& streams, uint32_t epoch);

  const Setup& setup_;
  const std::vector<uint32_t> ranks_;  ///< ascending
  const uint32_t most_;                ///< peers of the rank that has most
  const MessageLayout layout_;
  const Mirrors mirrors_;
  ArenaBlock mirror_memory_;
  std::unique_ptr<NetworkMemory> shared_;  ///< with the network
  std::optional<ClaimedQueues> queue_;
  std::optional<DeviceMemory> tables_;
  DeviceMemory workspace_;
  PutPaths paths_{};
};

}  // namespace tokenyard::low_latency
