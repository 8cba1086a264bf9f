/// The settings of networks over NCCL: options, and behind them the environment. NCCL reads its own
/// variables (NCCL_GIN_TYPE, NCCL_IB_HCA, NCCL_SOCKET_IFNAME, ...) besides.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "gin/gin_driver.hpp"
#include "tokenyard/world.hpp"

namespace tokenyard::gin {

struct GinOptions {
  std::shared_ptr<GinDriver> driver = {};  ///< null: that of the plug-in
  uint32_t queues_per_peer = 4;            ///< alike on all ranks
  bool by_rail = false;                    ///< connects ranks of one place on their hosts alone
  int traffic_class = -1;                  ///< -1: NCCL's
  /// After which a flush that does not end counts as failed.
  std::chrono::nanoseconds timeout = std::chrono::seconds(5);
  /// How long the card's kernel goes on without requests. A wait for the whole GPU takes this long,
  /// too; a request to a card that has ended waits for a launch, some tens of us.
  std::chrono::nanoseconds idle = std::chrono::microseconds(200);
};

/// Returns whether the options or the environment ask for this network.
bool asks_for_gin(const NetworkOptions& options);

/// Returns the options, with the environment's where they say nothing. Throws InvalidArgument,
/// which names an option or a variable, for a value that it cannot obey.
GinOptions gin_options_of(const NetworkOptions& options);

/// Returns what this host's environment makes of it. Throws as above.
std::string gin_options_text();

}  // namespace tokenyard::gin
