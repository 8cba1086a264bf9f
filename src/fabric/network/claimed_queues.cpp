#include "fabric/network/claimed_queues.hpp"

#include <fmt/format.h>

namespace tokenyard {

std::string too_few_queues(const Network& network, uint32_t count, uint32_t rank) {
  return fmt::format(
      "fewer than {} of the network's {} queues per peer are free on rank {}: exchanges of this "
      "World use the others, or have ended them by a fault. Close one, or raise the network's "
      "option "
      "'queues' (TOKENYARD_NETWORK_QUEUES)",
      count, network.queues_per_peer(), rank);
}

}  // namespace tokenyard
