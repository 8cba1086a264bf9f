/// A rank's card for its peers over libfabric.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/byte_stream.hpp"

namespace tokenyard::libfabric {

/// Messages that a peer may have under way.
inline constexpr uint32_t kCreditsMin = 8, kCreditsMax = 64;

struct PeerCard {
  static constexpr size_t kAddressMax = 4096;
  std::vector<std::byte> address;
  uint64_t token = 0;    ///< that a peer's messages show
  uint32_t credits = 0;  ///< that this rank grants each peer

  friend void visit(auto& stream, MaybeConst<PeerCard> auto& card) {
    stream.text(card.address, kAddressMax);
    stream(card.token, card.credits);
    stream.require(card.credits >= kCreditsMin && card.credits <= kCreditsMax);
  }
};

}  // namespace tokenyard::libfabric
