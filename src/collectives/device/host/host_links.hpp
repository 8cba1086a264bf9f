/// The host side of collectives between hosts: a rank's window, its links to its rail peers, and
/// launches. A DeviceCollectives has it if the ranks of its World span hosts. Ranks are members
/// here.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "collectives/device/host/device_collectives.hpp"
#include "collectives/device/host/members.hpp"
#include "collectives/device/kernels/between_hosts.hpp"
#include "collectives/device/kernels/splits_between_hosts.hpp"
#include "device/accelerator.hpp"
#include "device/device_memory.hpp"
#include "fabric/arena.hpp"
#include "fabric/host_map.hpp"
#include "fabric/network/network_memory.hpp"
#include "tokenyard/world.hpp"

namespace tokenyard::device_collectives {

/// Returns the first rank that this one reaches in no way, or kAllReached.
uint32_t first_out_of_reach(const World& world);
/// Returns which members share a host.
HostMap host_map_of(const World& world, const Members& members);

class HostLinks {
 public:
  /// Collective. Throws Unsupported, alike on all ranks, for a world that it cannot serve.
  HostLinks(World& world, const Members& members, const Options& options);
  /// Keeps the window unused while the arena exists, unless `give_back` was called.
  ~HostLinks();
  HostLinks(const HostLinks&) = delete;
  HostLinks& operator=(const HostLinks&) = delete;

  /// Returns whether an all_reduce of so many bytes adds all of them on every rank, rather than a
  /// part on each.
  bool adds_whole(uint64_t bytes) const { return map_.ranks() == 2 || bytes <= kWholeBytes; }
  /// `blocks`: at most.
  void launch(const CallParams& call, uint32_t blocks, Stream stream);
  /// Launches an all_to_all with sizes per pair. `known`: by slot, if the host knows them.
  void launch_splits(const CallParams& call, const SplitArrays& arrays,
                     std::span<const CountWord> known, uint32_t blocks, Stream stream);
  const HostMap& map() const { return map_; }
  /// Returns once this rank's requests have taken effect; throws PeerTimeout at the world's
  /// timeout.
  void drain();
  /// Says that no rank writes into the window any more.
  void give_back();

 private:
  /// Queues at every peer that nothing else uses, as long as this object lives.
  class Queues {
   public:
    explicit Queues(Network& network);
    ~Queues();
    Queues(const Queues&) = delete;
    Queues& operator=(const Queues&) = delete;
    const std::vector<uint32_t>& numbers() const { return numbers_; }
    void keep(uint32_t count);

   private:
    Network& network_;
    std::vector<uint32_t> numbers_;
  };

  static constexpr uint64_t kWholeBytes = 64 << 10;

  uint32_t agree_on_channels();
  uint32_t served_max() const;
  HostWindow near_layout(const Options& options) const;
  LinkWindow far_layout(const Options& options) const;
  uint32_t slot_bytes(const Options& options) const;
  void await_copies(const char* what) const;
  void fill_tables();

  BetweenHostsParams params_of(const CallParams& call) const;
  LaunchShape shape_of(uint32_t blocks) const;

  World& world_;
  Accelerator& accelerator_;
  const Members& members_;
  const HostMap map_;
  const std::vector<uint32_t> peers_;  ///< [links] ranks
  Queues queues_;
  const uint32_t channels_;
  const LinkWindow far_layout_;
  const HostWindow near_layout_;
  ArenaBlock near_;
  NetworkMemory far_;
  DeviceMemory counts_, own_partials_, offsets_;
  std::unique_ptr<DeviceMemory> tables_;
  const uint64_t first_epoch_;
  HostTable hosts_{};
  Peers windows_{};
  const HostLink* links_ = nullptr;
  bool is_known_ = false;  ///< whether peers may have the window's address
};

}  // namespace tokenyard::device_collectives
