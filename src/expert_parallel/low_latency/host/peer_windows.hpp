/// This rank's window, to which its peers write, and the addresses of the others.
#pragma once

#include <optional>

#include "device/device_memory.hpp"
#include "expert_parallel/low_latency/host/call_streams.hpp"
#include "expert_parallel/low_latency/host/put_peers.hpp"
#include "expert_parallel/low_latency/host/setup.hpp"
#include "fabric/arena.hpp"

namespace tokenyard::low_latency {

class PeerWindows {
 public:
  /// Allocates this rank's window. Collective, as allocate_on_all.
  explicit PeerWindows(const Setup& setup);
  /// Takes part in the constructor of ranks that join, beside an object that this rank has.
  static void accompany(World& world);
  /// Keeps the window unused while the arena exists, unless it was freed: once they know its
  /// address, peers may still store words there that no rank waits for.
  ~PeerWindows();
  PeerWindows(const PeerWindows&) = delete;
  PeerWindows& operator=(const PeerWindows&) = delete;
  /// Fills the window before any peer learns its address. `drained`: of every rank, before its
  /// first call.
  void fill(const CallStreams& streams, Drained drained);
  /// Collective: exchanges the addresses of windows that are filled. Repeated when a rank has a new
  /// window; no kernel may be using the addresses.
  /// `put_peers`: null if there are none.
  void exchange(const CallStreams& streams, const PutPeers* put_peers);

  /// Returns the windows of all ranks, once exchanged.
  const Windows& windows() const { return windows_; }
  std::byte* mine() const { return mine_.data(); }
  /// Frees this rank's window.
  void give_back() { mine_ = ArenaBlock(); }

 private:
  const Setup& setup_;
  ArenaBlock mine_;
  bool is_known_ = false;  ///< whether peers know its address
  Windows windows_{};
  std::optional<DeviceMemory> table_;  ///< addresses beyond those passed by value
};

}  // namespace tokenyard::low_latency
