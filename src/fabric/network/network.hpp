/// This rank's network to the ranks without load/store reach: queues that kernels post to, and
/// registered memory. Each way to work off the queues implements it, and passes one contract
/// (tests/fabric/network_contract.hpp).
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "device/accelerator.hpp"
#include "device/network.hpp"
#include "fabric/network/mirrors.hpp"
#include "tokenyard/world.hpp"

namespace tokenyard {

class AbortFlag;
class Arena;
class Bootstrap;

class Network {
 public:
  virtual ~Network() = default;

  /// Returns this rank's queues, for kernel parameters; valid while this object lives.
  virtual NetworkQueues queues() const = 0;
  virtual uint32_t queues_per_peer() const = 0;
  /// Returns whether a rank is reached by put and signal.
  virtual bool reaches(uint32_t rank) const = 0;

  /// Returns the numbers of so many queues, at every peer, that nobody else has claimed: one thread
  /// at a time may use a queue. Empty if fewer are free. Any thread may call this and the next one.
  std::vector<uint32_t> claim_queues(uint32_t count);
  /// Gives claimed queues back. Nobody may use them then, nor may their requests be under way. A
  /// queue with a refused request is retired: nobody is given it, `check` does not tell of it any
  /// more, and it ends no further wait.
  void give_back_queues(const std::vector<uint32_t>& numbers);

  /// Returns the key of a rank's arena, by which a kernel may put there, or from this rank's own.
  /// 0 where the network does not reach arenas.
  virtual MemoryKey arena_key(uint32_t rank) const = 0;
  /// Returns whether this rank's arena is registered: memory of a GPU may not be.
  virtual bool reaches_arena() const { return true; }
  /// Returns whether `register_memory` is of use: some networks reach arenas alone.
  virtual bool registers_memory() const { return true; }
  /// Returns whether `register_gpu_memory` is of use: peers put straight into memory of this GPU,
  /// although the network does not reach the arena.
  virtual bool takes_gpu_memory() const { return false; }
  /// Registers memory of the GPU as a target of peers' puts, not of inline puts and of signals.
  /// Throws OsError if the network refuses it.
  virtual MemoryKey register_gpu_memory(std::byte* base, size_t bytes);
  /// Registers memory of this rank's kernels as a source, and as a target for ranks that hold the
  /// key. Throws InvalidArgument if this rank has no region left.
  virtual MemoryKey register_memory(std::byte* base, size_t bytes) = 0;
  /// Ends a registration: later requests with its key are refused. Once it returns, the network
  /// touches the memory no more. Throws PeerTimeout, naming the rank whose requests did not end.
  virtual void deregister(MemoryKey key) = 0;

  /// Keeps memory until this network has ended: peers may still put there. Any thread may call it.
  void keep(std::shared_ptr<void> memory);

  /// Returns the mirrors of peers' memory, from which this rank's kernels put.
  Mirrors& mirrors() { return mirrors_; }

  /// Returns a name of the way to a rank, such as "proxy/tcp", for the topology; or nothing, if the
  /// fabric has named it.
  virtual std::string way(uint32_t) const { return {}; }
  /// Returns why a rank of another host is not reached; empty: it is reached, or not far.
  virtual std::string why_not(uint32_t) const { return {}; }
  /// Returns this rank's connections, if there are any. Any thread may call it.
  virtual std::vector<NetworkPath> paths() const { return {}; }

  /// Throws NetworkFault if the network as a whole works no more.
  virtual void check_works(const std::string& /*phase*/) const {}
  /// Throws NetworkFault if it works no more, or a request was refused, on a queue that is not
  /// retired.
  virtual void check(const std::string& phase) = 0;
  /// Waits until all requests posted before have taken effect, but for refused ones. Returns false
  /// if `until` passes first. For a rank that leaves: kernels have only a flush.
  virtual bool drain(TimePoint until) = 0;
  /// Drains for the last time, since this rank leaves: the destructor does not wait again.
  bool drain_at_end(TimePoint until);

 protected:
  /// Returns whether the requests of this rank have had their time.
  bool has_drained() const { return has_drained_.load(); }
  bool is_retired(uint32_t number) const;
  /// Returns `pairs` with null for those that are retired.
  std::vector<QueuePair*> in_use(std::vector<QueuePair*> pairs) const;

 private:
  /// Called with the number of queues that are claimed whenever it has changed.
  virtual void on_claims(size_t) {}
  /// Returns whether a request was refused on a queue with this number.
  virtual bool is_refused(uint32_t number) = 0;
  /// Has a rank's waits go on, unless a request was refused on a queue that is not `retired`.
  virtual void forget_refusals(const std::vector<bool>& retired) = 0;
  void retire_refused();  ///< under claims_mutex_

  std::atomic<bool> has_drained_ = false;
  std::mutex claims_mutex_;
  std::vector<bool> claimed_;  ///< [queues_per_peer]
  mutable std::mutex retired_mutex_;
  std::vector<bool> retired_;  ///< [queues_per_peer] under retired_mutex_
  std::vector<std::shared_ptr<void>> kept_memory_;
  Mirrors mirrors_;
};

/// The world that a network is made for.
struct NetworkPlace {
  Bootstrap& bootstrap;
  AbortFlag& abort_flag;
  Arena& arena;
  std::vector<bool> far;               ///< [ranks] those that are reached by put and signal
  std::vector<uint32_t> host_of = {};  ///< [ranks] as in the topology
  /// The job's. Empty: the ranks are threads of one process.
  std::string secret;
  std::string address = {};          ///< where other ranks reach this one; empty: not known
  std::chrono::nanoseconds timeout;  ///< of each of the network's own waits
};

/// Makes a rank's end of a network. Collective over the bootstrap; all that `place` refers to
/// outlives the network.
using MakeNetwork =
    std::function<std::shared_ptr<Network>(const NetworkPlace& place, TimePoint until)>;

}  // namespace tokenyard
