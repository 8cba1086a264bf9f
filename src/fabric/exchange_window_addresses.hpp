/// Tells every rank the addresses of all windows: the blocks of the arenas that peers write to.
#pragma once

#include <exception>
#include <string>
#include <vector>

#include "fabric/arena.hpp"
#include "fabric/gather.hpp"
#include "fabric/world_access.hpp"
#include "tokenyard/world.hpp"

namespace tokenyard {

/// Collective. Calls `use(addresses)` with [ranks] every rank's window, as this rank's kernels
/// address it, null for one that is absent or far. Initialise `window` first: peers may write to it
/// as soon as they have its address. For the same reason it is quarantined if this or `use` throws.
template <class Use>
void exchange_window_addresses(World& world, ArenaBlock& window, const std::string& what, Use use) {
  try {
    std::vector<std::byte*> addresses;
    for (const uint64_t offset : gather(world, window.offset(), what)) {
      const auto rank = static_cast<uint32_t>(addresses.size());
      std::byte* const base = is_present(world, rank) ? arena_of(world).base_of(rank) : nullptr;
      addresses.push_back(base != nullptr ? base + offset : nullptr);
    }
    use(addresses);
  } catch (const std::exception&) {
    window.quarantine();
    throw;
  }
}

}  // namespace tokenyard
