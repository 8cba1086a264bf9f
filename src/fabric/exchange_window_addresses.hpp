/// How ranks learn where everybody's window lies: the piece of the arena that its peers write to.
#pragma once

#include <exception>
#include <string>
#include <vector>

#include "fabric/arena.hpp"
#include "fabric/gather.hpp"
#include "tokenyard/world.hpp"

namespace tokenyard {

/// Collective: `use(addresses)` gets [ranks] everybody's window, as this rank's kernels address it.
/// The window is ready before: others may write there as soon as they know of it. So if this or
/// `use` throws, it stays out of use, for some may have learned where it lies.
template <class Use>
void exchange_window_addresses(World& world, ArenaBlock& window, const std::string& what, Use use) {
  try {
    std::vector<std::byte*> addresses;
    for (const uint64_t offset : gather(world, window.offset(), what))
      addresses.push_back(world.arena().base_of(static_cast<uint32_t>(addresses.size())) + offset);
    use(addresses);
  } catch (const std::exception&) {
    window.quarantine();
    throw;
  }
}

}  // namespace tokenyard
