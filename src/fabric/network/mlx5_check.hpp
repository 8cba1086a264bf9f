/// The host's checks of an mlx5 queue pair.
#pragma once

#include <string>

#include "device/accelerator.hpp"
#include "fabric/network/nic.hpp"

namespace tokenyard {

/// Throws NetworkFault if the card has refused a request that no kernel has waited for. `gone`: the
/// peer's word, see is_gone.
void check_mlx5(Accelerator& accelerator, const QueuePair& pair, const Mlx5Pair& queue,
                const AbortWord* gone, const std::string& phase);
/// Returns whether the card has failed a request, for whatever reason.
bool has_failed_request(Accelerator& accelerator, const Mlx5Pair& queue);

}  // namespace tokenyard
