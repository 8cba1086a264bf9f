/// A World: ranks that share memory or are joined by a network, and how this rank reaches each of
/// them.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tokenyard/error.hpp"

namespace tokenyard {

class Job;

/// How this rank reaches another one.
enum class Reach : uint8_t {
  none,
  self,
  load_store,  ///< its memory is mapped here: loads, stores, bulk copies, atomics
  put_signal,  ///< only through a network queue: puts bytes, then signals
};

struct PeerReach {
  Reach reach = Reach::none;
  std::string how;      ///< "shared memory", "CUDA peer access (NV18)", "simulated network", ...
  std::string why_not;  ///< why loads and stores are impossible, if they are
};

/// The host of an absent rank, one whose slot in the job is empty: it has none.
inline constexpr uint32_t kNoHost = 0xffffffff;

struct Topology {
  uint32_t hosts = 1;
  std::vector<uint32_t> host_of;  ///< [ranks] index of each rank's host, or kNoHost
  std::vector<PeerReach> peers;   ///< [ranks] as reached from this rank
  std::string text() const;       ///< human-readable table
};

/// How ranks reach ranks of other hosts: by a thread per rank, over TCP. A field that is not set
/// has the value of its environment variable, and without that its default. `connections` and
/// `queues` must be alike on all ranks. A transport that cannot obey a field or a variable refuses
/// it by name.
struct NetworkOptions {
  /// "tcp", "gin", "libfabric", "ibgda", or one of the last two, ":" and a provider or card; alike
  /// on all ranks but for the card. By default "tcp". TOKENYARD_NETWORK
  std::string transport = {};
  /// Names or addresses of the network interfaces that this rank may use, between commas; by
  /// default the one by which it reaches the job. Over "ibgda" they are cards ("mlx5_0", or
  /// "mlx5_0:1" with a port) or their interfaces, and the nearest to the GPU is used. "2=eth0"
  /// counts only for the rank of local rank, or GPU, 2. TOKENYARD_NETWORK_INTERFACES
  std::string interfaces = {};
  /// Ports on which it may listen, as "20000-20100"; by default any. TOKENYARD_NETWORK_PORTS
  std::string ports = {};
  /// Sockets per peer, at most 6; by default 2, or one per interface if there are more.
  /// TOKENYARD_NETWORK_CONNECTIONS
  uint32_t connections = 0;
  /// Queues per peer; by default 4. TOKENYARD_NETWORK_QUEUES
  uint32_t queues = 0;
  /// Requests of a queue that may be under way at once; by default 64, the most.
  /// TOKENYARD_NETWORK_QUEUE_DEPTH
  uint32_t queue_depth = 0;
  /// How long requests wait for a connection that has broken, or on which nothing moves, at most
  /// half of the world's timeout; by default 5 s. TOKENYARD_NETWORK_TIMEOUT, in seconds
  std::chrono::nanoseconds timeout{0};
  /// Whether receive rings of exchanges lie in memory of the GPU, over libfabric; by default where
  /// the provider registers it. TOKENYARD_NETWORK_GPU_MEMORY, 1 or 0
  std::optional<bool> gpu_memory = {};
  // Of cards (ibgda), but for `traffic_class`, which TCP has, too.
  /// Index of the card's address in its port's table; by default the best one.
  /// TOKENYARD_NETWORK_GID_INDEX
  std::optional<uint32_t> gid_index = {};
  /// 0 to 255, whose upper six bits are the DSCP of IP packets. TOKENYARD_NETWORK_TRAFFIC_CLASS
  std::optional<uint32_t> traffic_class = {};
  /// 0 to 15; on Ethernet the priority, 0 to 7. TOKENYARD_NETWORK_SERVICE_LEVEL
  std::optional<uint32_t> service_level = {};
  /// Key of the partition, as "0x8001"; by default the port's first. TOKENYARD_NETWORK_PKEY
  std::string pkey = {};
  /// Bytes of a packet, 256 to 4096; by default the port's. TOKENYARD_NETWORK_MTU
  uint32_t mtu = 0;
  /// Times that a request is sent again, 0 to 7; by default 7. TOKENYARD_NETWORK_RETRY_COUNT
  std::optional<uint32_t> retry_count = {};
  /// 1 to 31: a request is sent again after 4.096 us * 2^this; by default the longest with which
  /// all tries end within `timeout`. TOKENYARD_NETWORK_RETRY_TIMEOUT
  uint32_t retry_timeout = 0;
};

struct WorldOptions {
  std::chrono::nanoseconds timeout = std::chrono::seconds(30);  ///< of each wait, unless set
  /// Time for all ranks to reach the rendezvous, including the start of their processes; 0:
  /// `timeout`.
  std::chrono::nanoseconds rendezvous_timeout{0};
  size_t arena_bytes =
      size_t{1} << 30;          ///< peer-visible memory per rank; host memory is committed lazily
  uint32_t hosts = 1;           ///< simulated hosts (in-process worlds only)
  NetworkOptions network = {};  ///< to other hosts; simulated ones need its `transport`
  /// Whether the job's active ranks are numbered anew from 0, so that the world has no absent rank,
  /// as a megakernel demands; such a world does not follow its job (Job::world only).
  bool compact = false;
  /// Called periodically by every wait; may throw to end the wait (Python's Ctrl-C).
  std::function<void()> interrupt = [] {};
};

/// A connection of this rank's network to a rank of another host.
struct NetworkPath {
  uint32_t rank = 0;     ///< the other rank
  uint32_t number = 0;   ///< among the connections to it
  std::string from, to;  ///< addresses of the two ends
  bool up = false;
  uint64_t bytes_sent = 0;
  uint64_t times_lost = 0;      ///< times that it was given up; its queues went on over others
  double bytes_per_second = 0;  ///< as last measured under load; 0: never
};

/// Where the ranks of a job meet: in a store that rank 0 serves at host:port. Deprecated: it goes
/// with World::connect.
struct [[deprecated("Job::connect takes a JobOptions")]] Rendezvous {
  std::string host = "127.0.0.1";
  uint16_t port = 0;
  uint32_t rank = 0, size = 1;
  uint32_t local_rank = 0;        ///< selects the GPU
  std::string job = "tokenyard";  ///< jobs with other names stay apart
  /// Without it nobody joins, and nobody is listened to. Empty: that of TOKENYARD_SECRET_FILE or
  /// TOKENYARD_SECRET, else of this user's processes on this host, which is kept in a file.
  std::string secret = {};
  /// Ranks with equal names share memory; others reach one another over the network. Empty: that of
  /// TOKENYARD_HOST_NAME, or else ranks of one machine and network namespace share memory.
  std::string host_name = {};

  /// Reads RANK, WORLD_SIZE, MASTER_PORT and, if set, MASTER_ADDR, LOCAL_RANK and
  /// TOKENYARD_SECRET_FILE or TOKENYARD_SECRET. Throws InvalidArgument naming a variable that is
  /// missing or no number, or whose file somebody else may read.
  static Rendezvous from_environment();
};

/// One rank's end of a world. All ranks make it together. One thread at a time uses it; only
/// `cancel` may be called from any thread.
///
/// A world of a job follows it: once this rank's Job::recover, shrink, replace or grow has returned
/// in a later epoch, the next collective call of an exchange on the World gives it new memory and
/// the ranks of that epoch, as Job::world would.
class World {
 public:
  /// Makes a job of one process per rank, and a world of it: over shared memory within a host and
  /// the network between hosts. `device`: "host", or "cuda", with one GPU per rank.
  /// Blocks until all ranks have come. Throws PeerTimeout naming a missing rank, Unsupported naming
  /// ranks that cannot be connected. The job ends with the world, and those made from it, unless
  /// something else stands on it. Deprecated: call Job::connect, then Job::world.
  [[deprecated("call Job::connect, then Job::world")]] static std::unique_ptr<World> connect(
      const Rendezvous& rendezvous, const std::string& device, const WorldOptions& options = {});
  /// Makes a world inside this process and returns one World per rank, each for one thread, which
  /// should own it: others wait in vain for a rank that has ended until its World has, too, or
  /// until the function of its `goodbye` was called. `device` "host", or "cuda": rank r on GPU r
  /// (with fewer GPUs than ranks, all ranks on GPU 0, in one grid).
  static std::vector<std::unique_ptr<World>> in_process(uint32_t ranks, const std::string& device,
                                                        const WorldOptions& options = {});
  ~World();

  uint32_t rank() const;
  uint32_t size() const;
  const Topology& topology() const;
  /// Returns the connections to ranks of other hosts; empty if there are none. Waits for nothing.
  std::vector<NetworkPath> network_paths() const;
  /// Returns the job that its ranks are of. Throws Unsupported if they are threads of one process.
  std::shared_ptr<Job> job() const;
  std::chrono::nanoseconds timeout() const;

  /// Collective. Returns every rank's bytes in rank order; lengths may differ, and an absent rank's
  /// are empty. `what` names the call in errors.
  std::vector<std::vector<std::byte>> all_gather(std::span<const std::byte> mine,
                                                 const std::string& what);
  /// Collective. Returns once every present rank has called it. `what` names the call in errors.
  void barrier(const std::string& what);

  /// Ends every wait of this rank with Cancelled.
  void cancel();
  /// For in-process worlds. Returns a function that says goodbye for this rank, as the end of its
  /// World does, while its memory stays: other ranks may still need it, here and in all worlds
  /// rebuilt from this one, even after they are closed. Afterwards the rank must take part in
  /// nothing. Throws Unsupported for worlds of processes, which say goodbye when they end.
  std::function<void()> goodbye() const;
  /// Returns the ranks that have left or whose control connection has closed, ascending. A rank
  /// that was absent from the start is none of them. Deprecated where the ranks are processes:
  /// Job::active_ranks says who is left.
  std::vector<uint32_t> lost() const;
  /// Collective among the ranks not in `without`. Makes a new World over the surviving connections,
  /// with new memory and with ranks renumbered in order; this World must not be used afterwards.
  /// `arena_bytes`: per rank, the same on all ranks; 0: as in this World.
  /// In a world of processes a majority of the ranks agrees on who is left out: all ranks that any
  /// of the callers names, and all that are lost, also while this call lasts. A named rank stays if
  /// it names a lost one itself: waits for it failed because it waited. With an empty `without` the
  /// new World has the same ranks, or PeerLost names one that is gone. Throws OutOfTouch if the
  /// others go on without this rank, QuorumLost if too few ranks answer until the deadline. In
  /// other worlds all callers must name the same ranks.
  /// Deprecated where the ranks are processes: call Job::recover, then Job::world, whose
  /// WorldOptions::compact renumbers the ranks. Threads have no job.
  std::unique_ptr<World> rebuild(const std::vector<uint32_t>& without, size_t arena_bytes = 0);
  /// Returns the ranks that `rebuild` left out when it made this World, ascending, as they were
  /// numbered before, those that were absent there included; empty in a World that was not rebuilt.
  std::vector<uint32_t> left_out() const;

 private:
  friend struct WorldAccess;  ///< how the library's own parts reach what a World is made of
  struct Impl;
  explicit World(std::shared_ptr<Impl> impl);

  std::shared_ptr<Impl> impl_;
  mutable std::mutex mutex_;  ///< of a change of impl_, and of `cancel`
};

}  // namespace tokenyard
