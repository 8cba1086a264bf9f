/// The network of ranks in one process that pretend to be on several hosts: a kernel plays the card
/// (nic.hpp).
#pragma once

#include <array>
#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include "fabric/abort_flag.hpp"
#include "fabric/arena.hpp"
#include "fabric/bootstrap.hpp"
#include "fabric/network/network.hpp"
#include "fabric/network/network_stream.hpp"
#include "fabric/network/nic.hpp"

namespace tokenyard {

/// A kernel that runs beside the rank's own. Its abort flag ends it; the destructor waits for that.
class Aside {
 public:
  virtual ~Aside() = default;
};
/// `params`: the kernel's, which are copied.
using RunAside = std::function<std::unique_ptr<Aside>(
    const KernelEntry& kernel, const LaunchShape& shape, const void* params)>;

/// How a world runs a rank's simulated card.
struct SimulatedCard {
  RunAside run;  ///< empty: the world has no far ranks
  CardOptions options = {};
  uint32_t queues_per_peer = 4;
  bool within_hosts = false;  ///< also to ranks with load/store reach
};

class SimulatedNetwork final : public Network {
 public:
  struct Place {
    Bootstrap& bootstrap;
    AbortFlag& abort_flag;  ///< the world's
    Arena& arena;
    std::vector<std::byte*> far_arenas;  ///< [ranks] null for those with load/store reach
    std::chrono::nanoseconds timeout;    ///< of each of this object's waits
  };

  /// Collective over the bootstrap, whose accelerator runs the kernels. `place` must outlive this.
  SimulatedNetwork(const Place& place, const SimulatedCard& card, TimePoint until);
  ~SimulatedNetwork() override;
  SimulatedNetwork(const SimulatedNetwork&) = delete;
  SimulatedNetwork& operator=(const SimulatedNetwork&) = delete;

  NetworkQueues queues() const override;
  uint32_t queues_per_peer() const override { return queues_per_peer_; }
  bool reaches(uint32_t rank) const override { return place_.far_arenas[rank] != nullptr; }
  MemoryKey arena_key(uint32_t rank) const override { return arena_keys_[rank]; }
  MemoryKey register_memory(std::byte* base, size_t bytes) override;
  void deregister(MemoryKey key) override;
  void check(const std::string& phase) override;
  bool drain(TimePoint until) override;

 private:
  template <class T>
  T* array(size_t count, const std::vector<T>& values = {});
  /// The same in memory that only kernels reach.
  template <class T>
  T* device_array(size_t count, const std::vector<T>& values);
  std::span<AbortWord> gone() const { return {gone_, place_.bootstrap.size()}; }
  bool is_refused(uint32_t number) override;
  void forget_refusals(const std::vector<bool>& retired) override;
  MemoryKey open(std::byte* base, size_t bytes);
  void close(uint32_t number, MemoryKey key);
  void change_gates(uint32_t number, MemoryKey key);
  void start(const SimulatedCard& card, const std::vector<uint64_t>& tables);
  Mlx5SendQueue* make_mlx5(const QueuePair& pair, const CardOptions& options);
  bool is_settled(size_t number) const;

  const Place place_;
  Accelerator& accelerator_;
  const uint32_t queues_per_peer_;
  AbortFlag stop_;
  /// Of the waits for a region's users: the loss of one rank is no reason to stop waiting for the
  /// others, which may still access the memory.
  AbortFlag never_;
  std::unique_ptr<ErrorRecord> gate_record_;  ///< made anew after a failure
  ErrorRecord card_record_;
  const NetworkStream stream_;
  ArenaBlock table_;  ///< given back in the order of the stream
  std::vector<std::shared_ptr<void>> kept_;
  AbortWord* gone_ = nullptr;       ///< [ranks] see AbortFlag::watch
  std::vector<QueuePair*> pairs_;   ///< those that exist
  std::vector<Mlx5Pair> mlx5_;      ///< as many, or none
  std::byte** bases_ = nullptr;     ///< [kNetworkRegions] where regions begin
  QueueEnd* ends_ = nullptr;        ///< [ranks][queues_per_peer]
  MemoryKey* key_table_ = nullptr;  ///< [ranks]
  std::vector<MemoryKey> arena_keys_;
  std::array<MemoryKey, kNetworkRegions> keys_{};  ///< of this rank's regions; 0: not in use
  uint64_t tags_ = 0;                              ///< tags drawn so far
  uint64_t seed_;
  std::unique_ptr<Aside> card_;
};

}  // namespace tokenyard
