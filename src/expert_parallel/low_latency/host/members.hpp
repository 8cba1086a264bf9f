/// Ranks agree from which epoch on they count, and where the experts are, when an object is made:
/// by all of them, or by one that joins ranks which have made calls.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tokenyard/world.hpp"

namespace tokenyard::low_latency {

struct Members {
  /// Of a rank that has made no calls.
  static constexpr std::optional<uint32_t> kNone = std::nullopt;

  uint32_t epoch = 0;            ///< of the last call that counts as made
  std::vector<int32_t> map;      ///< the map that was set
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
  /// Throws InvalidArgument on all ranks alike if the maps of ranks that have made calls differ.
  static Members gather(World& world, std::optional<uint32_t> last,
                        const std::vector<int32_t>& map);
};

}  // namespace tokenyard::low_latency
