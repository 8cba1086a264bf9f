/// The host side of messages between hosts: a rank's window, and its link to each rank of another
/// host. Ranks are members here.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "collectives/device/host/device_collectives.hpp"
#include "collectives/device/host/members.hpp"
#include "collectives/device/kernels/messages_between_hosts.hpp"
#include "device/accelerator.hpp"
#include "device/device_memory.hpp"
#include "fabric/host_map.hpp"
#include "fabric/network/claimed_queues.hpp"
#include "fabric/network/network_memory.hpp"
#include "tokenyard/world.hpp"

namespace tokenyard::device_collectives {

class MessageLinks {
 public:
  /// Collective. `map`: of the members, which outlives this object, as they do.
  MessageLinks(World& world, const Members& members, const HostMap& map, const Options& options);

  /// Throws Unsupported if a rank had no queue of the network left for messages.
  void require_queue() const;
  /// Returns the number of the link to a member, if that is on another host.
  std::optional<uint32_t> link_to(uint32_t member) const;
  uint32_t chunk_bytes() const { return layout_.data_bytes; }
  /// Returns the parameters of a launch, of whose messages the last ones are with other hosts.
  MessagesBetweenParams params_of(const MessagesParams& all, uint32_t far_count,
                                  uint32_t near_blocks) const;
  /// Says that no rank writes into the window any more.
  void give_back();

 private:
  MessageWindow layout(const Options& options) const;
  void fill_tables();

  World& world_;
  Accelerator& accelerator_;
  const Members& members_;
  const HostMap& map_;
  std::vector<uint32_t> peers_;  ///< [links] members, ascending
  std::optional<ClaimedQueues> queue_;
  std::optional<uint32_t> without_queue_;  ///< first rank that had none left
  MessageWindow layout_{};
  // None of these without a queue:
  std::optional<NetworkMemory> window_;
  std::optional<DeviceMemory> counts_, links_;
};

}  // namespace tokenyard::device_collectives
