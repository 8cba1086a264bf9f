/// Ranks agree from which epoch on they count, and where the experts are, when an object is made:
/// by all of them, or by one that joins ranks which have made calls.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tokenyard/world.hpp"

namespace tokenyard::low_latency {

/// A map that was set, and how many were set before it.
struct MapSet {
  std::vector<int32_t> map;
  uint64_t version = 0;
};

struct Members {
  /// Of a rank that has made no calls.
  static constexpr std::optional<uint32_t> kNone = std::nullopt;

  uint32_t epoch = 0;            ///< of the last call that counts as made
  MapSet map;                    ///< the last map that any of them has set
  std::vector<bool> living;      ///< [ranks] whether each takes part
  std::vector<uint32_t> joined;  ///< ranks that have made no calls, ascending, if others have

  /// Collective. `last`: the epoch of this rank's last call, once its streams are drained. `map`:
  /// the one that was set here.
  ///
  /// Ranks that join ranks which have made calls begin beyond all epochs of which any word may
  /// exist. A rank that died may have been ahead of the others: it may have sent for the two epochs
  /// after the last that its destination had drained (protocol.hpp, 3). Its ids and weights carry
  /// these epochs, and would be taken for those of its successor.
  ///
  /// Where a rank was lost while the others set a map, some have set it and some have not: all
  /// have been given it, and take it. Throws InvalidArgument on all ranks alike if maps of one
  /// version differ.
  static Members gather(World& world, std::optional<uint32_t> last, const MapSet& map);
};

}  // namespace tokenyard::low_latency
