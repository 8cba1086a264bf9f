/// The settings of networks over mlx5 cards: options, and behind them the environment.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "ibgda/device_choice.hpp"
#include "ibgda/gpu_memory.hpp"
#include "ibgda/rdma_driver.hpp"
#include "tokenyard/world.hpp"

namespace tokenyard::ibgda {

/// Where a value came from that only the port can refuse: an option, or a variable.
struct OptionNames {
  std::string service_level = "network.service_level", pkey = "network.pkey", mtu = "network.mtu";
};

struct IbgdaOptions {
  std::shared_ptr<RdmaDriver> driver = {};  ///< null: that of the plug-in
  std::shared_ptr<GpuMemory> gpu = {};      ///< null: kernels run on the host
  DeviceRequest request = {};
  uint8_t traffic_class = 0, service_level = 0;
  std::optional<uint16_t> pkey = {};        ///< else the port's first one
  uint8_t mtu = 0;                          ///< as in PortFacts; 0: the port's
  uint8_t retries = 7;                      ///< of a request, before its peer counts as silent
  std::optional<uint8_t> ack_timeout = {};  ///< see PathPlan; else by `timeout`
  std::chrono::nanoseconds timeout = std::chrono::seconds(5);  ///< for all retries together
  uint32_t queues_per_peer = 4;                                ///< alike on all ranks
  uint32_t slots = 128;                                        ///< entries per queue, a power of 2
  OptionNames names = {};
};

/// Returns whether the options or the environment ask for this network.
bool asks_for_ibgda(const NetworkOptions& options);

/// Returns the options, with the environment's where they say nothing. Throws InvalidArgument,
/// which names an option or a variable, for a value that no card could use.
/// `local_rank`: this process's, or its GPU's number; cards may be allowed for it alone.
IbgdaOptions ibgda_options_of(const NetworkOptions& options, uint32_t local_rank = 0);

/// Returns what this host's environment makes of it. Throws as above.
std::string options_text();

}  // namespace tokenyard::ibgda
