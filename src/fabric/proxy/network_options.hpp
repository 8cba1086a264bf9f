/// The settings of the network between hosts: options, and behind them the environment.
#pragma once

#include "fabric/proxy/proxy_network.hpp"
#include "tokenyard/world.hpp"

namespace tokenyard {

/// Returns the options, with the environment's where they say nothing. Throws InvalidArgument,
/// which names an option or a variable, for a value that no network could use.
/// `local_rank`: this process's, or its GPU's number; interfaces may be given for it alone.
ProxyNetworkOptions proxy_options_of(const NetworkOptions& options, uint32_t local_rank = 0);

/// Returns what this host's environment makes of the network, and the interfaces that it has.
/// Throws as above, and OsError.
std::string network_text();

}  // namespace tokenyard
