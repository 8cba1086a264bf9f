/// The host side of an exchange between hosts: its window, its links, and the launches of its two
/// kernels. An ExpertParallel object has one if its World spans hosts.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "device/accelerator.hpp"
#include "device/device_memory.hpp"
#include "expert_parallel/internode/kernels/combine.hpp"
#include "expert_parallel/internode/kernels/dispatch.hpp"
#include "fabric/arena.hpp"
#include "fabric/bootstrap.hpp"
#include "fabric/host_map.hpp"
#include "fabric/network/claimed_queues.hpp"
#include "fabric/network/network_memory.hpp"
#include "fabric/world_access.hpp"
#include "tokenyard/expert_parallel.hpp"
#include "tokenyard/world.hpp"

namespace tokenyard::internode {

/// Names the other host, and the rail, for whose ranks calls of `rank` have waited the longest.
void find_slowest(const HostMap& map, uint32_t rank, ExpertParallel::Metrics& metrics);

class RailExchange {
 public:
  /// The exchange that all ranks make.
  struct Shape {
    uint32_t experts, topk, tokens_max, hidden;
    ExpertPartition partition;
    uint32_t blocks_max;  ///< of this rank's calls
    uint32_t ring_rows;   ///< 0: chosen
    uint32_t chunk_rows;  ///< 0: chosen
    uint32_t movers;      ///< warps that move rows per block; 0: chosen
    bool fp32_partials;
  };
  /// Collective. Throws Unsupported, alike on all ranks, for a world that it cannot serve.
  RailExchange(World& world, const Shape& shape);
  /// Keeps the window unused while the arena exists, unless `give_back` was called: peers know its
  /// address.
  ~RailExchange();
  RailExchange(const RailExchange&) = delete;
  RailExchange& operator=(const RailExchange&) = delete;

  /// Returns the bytes that a route of so many tokens takes, and its tables there.
  size_t route_bytes(uint32_t tokens) const { return route(nullptr, tokens).bytes(); }
  RailRoute route(void* base, uint32_t tokens) const;

  /// Throw InvalidArgument, before a launch, if a ring or a block's memory cannot hold a slot with
  /// such a row.
  void check_dispatch(const throughput::DispatchParams& call, uint32_t blocks) const;
  void check_combine(const throughput::CombineParams& call) const;

  void launch_dispatch(const throughput::DispatchParams& call, uint32_t blocks,
                       Stream stream) const;
  void launch_combine(const throughput::CombineParams& call, void* route, uint32_t blocks,
                      Stream stream) const;

  /// Returns how BF16 rows of this exchange travel.
  ExpertParallel::Rings rings() const;
  /// Sets what was counted so far: bytes and waits per link, waits per role. Any thread may call
  /// it.
  void add_to(ExpertParallel::Metrics& metrics) const;

  /// The bytes of each rank in a world of `hosts` hosts of equal size.
  struct Bytes {
    uint64_t near, far;  ///< parts of the window
    uint64_t route;      ///< of a route's tables
  };
  static Bytes bytes_of(const Shape& shape, uint32_t ranks, uint32_t hosts, uint32_t tokens);

  const HostMap& map() const { return map_; }
  /// Returns the rank that all ranks name for a call that has failed here in the wait of `facts`,
  /// which lasted for a timeout or ended with a goodbye. The first call tells the other ranks of
  /// the wait, and hears of theirs, until a little after the longest wait of a call. Any thread may
  /// call it.
  uint32_t culprit_of(const WaitFacts& facts);
  /// Tells the other ranks that a call has failed here because of `rank`.
  void report(uint32_t rank) { bootstrap_of(world_).report_timeout(object_, rank); }
  /// Returns the bytes of this rank's window. Only its first part surely lies in the arena.
  size_t bytes() const {
    return layout_.near_bytes() + layout_.far_bytes() + layout_.rings_bytes();
  }
  /// Lets the kernels that a CUDA graph has captured fail as soon as they begin. Returns when it is
  /// so.
  void retire();
  /// Says that no peer writes into the window any more.
  void give_back() {
    is_known_ = false;
    far_.give_back();
    if (rings_) rings_->give_back();
  }

 private:
  Rails rails(const SlotLayout& slot) const;
  NetworkTarget rings_target() const;
  std::byte* rings_data() const;
  DispatchParams dispatch_params(const throughput::DispatchParams& call, uint32_t blocks) const;
  bool is_wide(const throughput::CombineParams& call) const;
  SlotLayout partial_slot(const throughput::CombineParams& call) const;
  void fill_tables();
  void await_copies(const char* what) const;

  World& world_;
  Accelerator& accelerator_;
  const uint64_t object_;  ///< its number among the world's
  const Shape shape_;
  const HostMap map_;
  const std::vector<uint32_t> peers_;  ///< [links] ranks
  const TokenColumns columns_;
  const WindowLayout layout_;
  ArenaBlock near_;                             ///< first part of the window
  NetworkMemory far_;                           ///< second part, and behind it the third
  std::optional<NetworkMemory> rings_;          ///< the third, where it lies in GPU memory
  std::optional<ClaimedQueues> queues_;         ///< unless retired
  bool is_known_ = false;                       ///< whether peers may have the window's address
  std::optional<DeviceMemory> tables_;          ///< Hosts, Links and addresses
  std::optional<DeviceMemory> workspace_;       ///< RailTables
  std::optional<DeviceMemory> totals_, shown_;  ///< memory of statistics_
  RailStatistics statistics_{};
  Hosts hosts_{};
  Peers windows_{};
  const Link* links_ = nullptr;
  const uint32_t* link_to_ = nullptr;
  std::mutex naming_;
  std::optional<uint32_t> culprit_;
};

}  // namespace tokenyard::internode
