/// A rank's registered memory, in its arena, so that its peers' cards can reach the table.
///
/// A region has a gate per rank: the key that opens it in the low half, and in the high half the
/// number of accesses that this rank's card has under way. A card enters by adding 1 to that
/// number, and leaves again without an access if the key is another. To deregister, the owner
/// clears the key, then waits until nobody is inside. Both changes are atomic updates of one word,
/// so no card enters unseen.
#pragma once

#include "device/device.hpp"
#include "device/network.hpp"

namespace tokenyard {

struct NetworkRegion {
  std::byte* base;
  uint64_t bytes;
};

struct RegionTable {
  std::byte* memory = nullptr;  ///< as the user of this view addresses it
  uint32_t ranks = 0;

  static constexpr size_t bytes(uint32_t ranks) {
    return kNetworkRegions * (sizeof(NetworkRegion) + ranks * sizeof(uint64_t));
  }
  TOKENYARD_DEVICE Peer<NetworkRegion> region(uint32_t number) const {
    return Peer<NetworkRegion>(reinterpret_cast<NetworkRegion*>(memory) + number);
  }
  TOKENYARD_DEVICE Peer<uint64_t> gate(uint32_t number, uint32_t rank) const {
    std::byte* const gates = memory + kNetworkRegions * sizeof(NetworkRegion);
    return Peer<uint64_t>(reinterpret_cast<uint64_t*>(gates) + number * ranks + rank);
  }
};

inline constexpr uint64_t kGateUser = uint64_t{1} << 32;
/// The key of a region whose owner has closed its network: requests to it are dropped.
inline constexpr MemoryKey kClosedKey = 0xffffffff;
static_assert(region_of_key(kClosedKey) >= kNetworkRegions, "no region has this key");

/// Opens or closes one region of this rank.
struct GateParams {
  WaitContext wait_context;
  RegionTable table;
  uint32_t number;
  MemoryKey key;  ///< that opens it, after the host has written the region; to close it, 0 or
                  ///< kClosedKey
  const uint32_t* gone;  ///< [ranks] set for ranks that no longer access anything
};

TOKENYARD_DECLARE_KERNEL(gate_kernel, GateParams);

/// The phase of the kernel's only wait.
inline constexpr const char* kGatePhase = "network: deregister";

}  // namespace tokenyard
