/// A World: the ranks that work together, and how this one reaches the others.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tokenyard/error.hpp"

namespace tokenyard {

class Accelerator;
class Arena;
class Bootstrap;
class AbortFlag;
class Network;

/// How a rank can be reached from this one.
enum class Reach : uint8_t {
  none,
  self,
  load_store,  ///< its memory is mapped here: loads, stores, bulk copies, atomics
  put_signal,  ///< only through a network queue: put bytes, then signal
};

struct PeerReach {
  Reach reach = Reach::none;
  std::string how;      ///< "shared memory", "CUDA peer access (NV18)", "simulated network", ...
  std::string why_not;  ///< why there is no load/store, where there is none
};

struct Topology {
  uint32_t hosts = 1;
  std::vector<uint32_t> host_of;  ///< [ranks]
  std::vector<PeerReach> peers;   ///< [ranks], from this rank
  std::string text() const;       ///< a table for people
};

struct WorldOptions {
  std::chrono::nanoseconds timeout = std::chrono::seconds(30);  ///< of every wait, unless told
  /// That the ranks may take to come to the rendezvous, the start of their processes included; as
  /// `timeout` if 0.
  std::chrono::nanoseconds rendezvous_timeout{0};
  size_t arena_bytes =
      size_t{1} << 30;  ///< peer-visible memory a rank; host memory is taken lazily
  uint32_t hosts = 1;   ///< simulated hosts (in-process worlds only)
  /// Called now and then by everything that waits; may throw to end the wait (Python's Ctrl-C).
  std::function<void()> interrupt = [] {};
};

/// Where the ranks of a job meet: rank 0 listens at host:port.
struct Rendezvous {
  std::string host = "127.0.0.1";
  uint16_t port = 0;
  uint32_t rank = 0, size = 1;
  uint32_t local_rank = 0;        ///< picks the GPU
  std::string job = "tokenyard";  ///< strangers with another name are refused

  /// From RANK, WORLD_SIZE, MASTER_PORT, and, if they are set, MASTER_ADDR and LOCAL_RANK. Throws
  /// InvalidArgument naming a variable that is missing or no number.
  static Rendezvous from_environment();
};

/// One rank's end of the world. Made by all ranks together, used by one thread at a time, except
/// `cancel`, which any thread may call.
class World {
 public:
  /// One process a rank on this host, over shared memory (`device` "host") or one GPU a rank
  /// ("cuda"). Blocks until every rank has come. Throws PeerTimeout naming a rank that did not.
  static std::unique_ptr<World> connect(const Rendezvous& rendezvous, const std::string& device,
                                        const WorldOptions& options = {});
  /// All ranks in this process, one World each, to be used from a thread each. `device` "host";
  /// "cuda": rank r on GPU r (as many GPUs as ranks, else all ranks on GPU 0, in one grid).
  static std::vector<std::unique_ptr<World>> in_process(uint32_t ranks, const std::string& device,
                                                        const WorldOptions& options = {});
  ~World();

  uint32_t rank() const;
  uint32_t size() const;
  const Topology& topology() const;
  std::chrono::nanoseconds timeout() const;

  /// Collective: every rank's bytes, in rank order. Lengths may differ.
  std::vector<std::vector<std::byte>> all_gather(std::span<const std::byte> mine,
                                                 const std::string& what);
  /// Collective: returns once every rank has called.
  void barrier(const std::string& what);

  /// Ends every wait of this rank with Cancelled.
  void cancel();
  /// Of an in-process world: what says goodbye for this rank, as the end of a world does, while its
  /// memory stays, which others may need yet: here and in all worlds rebuilt from this, also once
  /// they are closed. The rank must take part in nothing afterwards. Throws Unsupported among
  /// processes, which say goodbye when they end.
  std::function<void()> goodbye() const;
  /// Ranks that have left, or whose control connection has closed, ascending.
  std::vector<uint32_t> lost() const;
  /// Collective among the ranks not in `without`: a new World (new memory, ranks renumbered in
  /// order) over the surviving connections. This one must not be used afterwards. `arena_bytes`: of
  /// the new one, alike on all ranks; 0: as this one was made with.
  std::unique_ptr<World> rebuild(const std::vector<uint32_t>& without, size_t arena_bytes = 0);

  // For the parts of the library that launch kernels.
  Accelerator& accelerator() const;
  Arena& arena() const;
  /// Raises the error for a failed wait of a kernel on this rank.
  AbortFlag& abort_flag() const;
  /// The way to ranks with put/signal reach; null if there are none.
  Network* network() const;

  struct Impl;
  explicit World(std::unique_ptr<Impl> impl);

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace tokenyard
