/// Addresses of one object in the memory of every rank, as this rank's kernels see them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "device/peer.hpp"
#include "device/vector.hpp"

namespace tokenyard {

/// Passed by value for the first kAtHand ranks: a kernel finds these addresses among its parameters
/// and need not read a table before it sends its first word. Each launch copies its parameters to
/// the device, so larger worlds use a table.
struct Peers {
  static constexpr uint32_t kAtHand = 8;
  std::byte* at_hand[kAtHand];
  std::byte* here;          ///< address on this rank
  std::byte* const* table;  ///< [ranks], readable by this rank's kernels; may be null if ranks <=
                            ///< kAtHand

  static Peers of(std::span<std::byte* const> addresses, uint32_t self, std::byte* const* table) {
    Peers peers{.at_hand = {}, .here = addresses[self], .table = table};
    std::copy_n(addresses.begin(), std::min<size_t>(addresses.size(), kAtHand), peers.at_hand);
    return peers;
  }

  TOKENYARD_DEVICE Peer<std::byte> of(uint32_t rank) const {
    return Peer<std::byte>(rank < kAtHand ? at_hand[rank] : load_cached(table + rank));
  }
  /// Returns the address on one of the first kAtHand ranks, without the branch that loads.
  TOKENYARD_DEVICE Peer<std::byte> of_at_hand(uint32_t rank) const {
    return Peer<std::byte>(at_hand[rank]);
  }
  TOKENYARD_DEVICE std::byte* mine() const { return here; }
};

}  // namespace tokenyard
