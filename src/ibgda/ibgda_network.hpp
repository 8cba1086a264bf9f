/// The network of ranks whose kernels drive an mlx5 card themselves: they write its entries and
/// ring its doorbells (device/mlx5_queue.hpp). The host makes the queue pairs and registers memory;
/// no thread of it takes part afterwards.
///
///   choose a card, port and GID      device_choice.hpp
///   make queue pairs, to INIT        mlx5_card.hpp, commands.hpp, through rdma_driver.hpp
///   exchange numbers and addresses   over the job's links
///   to RTR, to RTS; all ranks wait until all have done so
///
/// A region is a key of the card whose low byte is the region's number and whose address 0 is its
/// first byte, so keys and targets are those of every network (docs/decisions/mlx5_host.md).
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "base/log.hpp"
#include "device/device_memory.hpp"
#include "fabric/abort_flag.hpp"
#include "fabric/arena.hpp"
#include "fabric/bootstrap.hpp"
#include "fabric/network/network.hpp"
#include "fabric/network/network_stream.hpp"
#include "fabric/network/nic.hpp"
#include "ibgda/ibgda_options.hpp"
#include "ibgda/mlx5_card.hpp"

namespace tokenyard::ibgda {

struct Endpoint;

class IbgdaNetwork final : public Network {
 public:
  /// Collective over the bootstrap. `place` must outlive this. Throws, alike on all ranks,
  /// InvalidArgument, OsError, or Unsupported naming what is missing.
  IbgdaNetwork(const NetworkPlace& place, const IbgdaOptions& options, TimePoint until);
  ~IbgdaNetwork() override;
  IbgdaNetwork(const IbgdaNetwork&) = delete;
  IbgdaNetwork& operator=(const IbgdaNetwork&) = delete;

  NetworkQueues queues() const override;
  uint32_t queues_per_peer() const override { return options_.queues_per_peer; }
  bool reaches(uint32_t rank) const override { return place_.far[rank]; }
  std::string way(uint32_t rank) const override;
  MemoryKey arena_key(uint32_t rank) const override { return arena_keys_[rank]; }
  bool reaches_arena() const override;
  MemoryKey register_memory(std::byte* base, size_t bytes) override;
  void deregister(MemoryKey key) override;
  void check(const std::string& phase) override;
  bool drain(TimePoint until) override;

 private:
  /// Memory goes last: the card may use it until its queue pair ends.
  struct Queue {
    std::unique_ptr<DeviceMemory> memory, stamps, shared_pair, kernels_end;
    Mlx5Pair view{};
    CardQueue card;
    bool has_ended = false;  ///< by `end_gone`
    QueuePair& pair() const { return *shared_pair->as<QueuePair>(); }
  };

  bool is_refused(uint32_t number) override;
  void forget_refusals(const std::vector<bool>& retired) override;
  void open();
  void open_arena();
  void make_queue(Queue& queue, uint32_t peer, uint32_t number);
  void publish_queue(Queue& queue, uint32_t index);
  std::vector<Endpoint> exchange(TimePoint until);
  void connect(const std::vector<Endpoint>& endpoints);
  void fill_tables();
  MemoryKey open_region(uint32_t number, std::byte* base, size_t bytes);
  void end_gone();
  /// Ends queues, then regions. Tells what the card keeps, in the log.
  void close_all();
  void unmap_registers();
  bool is_settled(const Queue& queue) const;
  bool is_gone(uint32_t rank) const;

  const NetworkPlace place_;
  const IbgdaOptions options_;
  const Log log_;
  Accelerator& accelerator_;
  std::shared_ptr<RdmaDriver> driver_;
  const NetworkStream stream_;
  std::unique_ptr<DeviceMemory> gone_, bases_, old_values_, ends_, key_table_;
  /// Memory that the card may touch until it is closed, since it did not obey.
  std::vector<std::unique_ptr<DeviceMemory>> kept_;
  std::unique_ptr<Mlx5Card> card_;
  std::string why_pinned_;          ///< why the arena is not registered; empty: it is
  std::byte* registers_ = nullptr;  ///< as kernels address them
  std::array<CardRegion, kNetworkRegions> regions_;
  std::vector<Queue> queues_;  ///< [ranks][queues_per_peer] empty where there is none
  std::vector<MemoryKey> arena_keys_;
};

/// Returns what makes such networks.
MakeNetwork ibgda_networks(const IbgdaOptions& options);

}  // namespace tokenyard::ibgda
