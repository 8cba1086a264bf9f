/// Where all ranks keep something in their memory, as a rank's kernels address it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "device/peer.hpp"
#include "device/vector.hpp"

namespace tokenyard {

/// By value as far as most worlds go: parameters are at hand where a table in memory would have to
/// be read before the first word is sent. But every launch carries them to the device anew, so
/// there is a table for larger worlds.
struct Peers {
  static constexpr uint32_t kAtHand = 8;
  std::byte* at_hand[kAtHand];
  std::byte* here;          ///< this rank's
  std::byte* const* table;  ///< [ranks] in memory that this rank's kernels read; may be null if
                            ///< all are at hand

  static Peers of(std::span<std::byte* const> addresses, uint32_t self, std::byte* const* table) {
    Peers peers{.at_hand = {}, .here = addresses[self], .table = table};
    std::copy_n(addresses.begin(), std::min<size_t>(addresses.size(), kAtHand), peers.at_hand);
    return peers;
  }

  DEVICE Peer<std::byte> of(uint32_t rank) const {
    return Peer<std::byte>(rank < kAtHand ? at_hand[rank] : load_cached(table + rank));
  }
  /// Of one of the first kAtHand, without a branch that loads.
  DEVICE Peer<std::byte> of_at_hand(uint32_t rank) const { return Peer<std::byte>(at_hand[rank]); }
  DEVICE std::byte* mine() const { return here; }
};

}  // namespace tokenyard
