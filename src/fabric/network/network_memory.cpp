#include "fabric/network/network_memory.hpp"

#include <exception>

#include "fabric/collective_step.hpp"
#include "fabric/world_access.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard {

NetworkMemory::NetworkMemory(World& world, size_t bytes)
    : network_(*network_of(world)), bytes_(bytes) {
  try {
    collective_step(world, "memory for a network", [&] {
      // Some ranks' arenas may be reached, and others' not.
      if (!network_.reaches_arena()) return pin(world);
      block_ = arena_of(world).allocate(bytes, Stream{}, ArenaEnd::upper);
      key_ = network_.arena_key(world.rank());
    });
  } catch (const std::exception&) {
    unpin();
    throw;
  }
}

NetworkMemory::~NetworkMemory() {
  if (!is_known_) {
    unpin();
    return;
  }
  block_.quarantine();
  if (pinned_) network_.keep(pinned_);
}

void NetworkMemory::pin(World& world) {
  pinned_ =
      std::make_shared<DeviceMemory>(accelerator_of(world), bytes_, DeviceMemory::Kind::shared);
  key_ = network_.register_memory(data(), bytes_);
}

void NetworkMemory::unpin() {
  if (!pinned_ || key_ == 0) return;
  try {
    network_.deregister(key_);
  } catch (const std::exception&) {
    network_.keep(pinned_);  // A request that has not ended still reads it.
  }
}

}  // namespace tokenyard
