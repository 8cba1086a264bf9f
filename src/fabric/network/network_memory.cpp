#include "fabric/network/network_memory.hpp"

#include <exception>

#include "fabric/world_access.hpp"

namespace tokenyard {

NetworkMemory::NetworkMemory(World& world, size_t bytes)
    : network_(*network_of(world)), bytes_(bytes) {
  if (network_.reaches_arena()) {
    block_ = arena_of(world).allocate(bytes, Stream{}, ArenaEnd::upper);
    key_ = network_.arena_key(world.rank());
    return;
  }
  pinned_ =
      std::make_shared<DeviceMemory>(accelerator_of(world), bytes, DeviceMemory::Kind::shared);
  key_ = network_.register_memory(data(), bytes);
}

NetworkMemory::~NetworkMemory() {
  if (is_known_) {
    block_.quarantine();
    if (pinned_) network_.keep(pinned_);
    return;
  }
  if (!pinned_) return;
  try {
    network_.deregister(key_);
  } catch (const std::exception&) {
    network_.keep(pinned_);  // A request that has not ended still reads it.
  }
}

}  // namespace tokenyard
