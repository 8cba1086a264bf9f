#include "fabric/network/network_memory.hpp"

#include <exception>

#include "fabric/collective_step.hpp"
#include "fabric/world_access.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard {

NetworkMemory::NetworkMemory(World& world, size_t bytes, Use use)
    : network_(*network_of(world)), bytes_(bytes) {
  try {
    collective_step(world, "memory for a network", [&] {
      // Some ranks' arenas may be reached, and others' not.
      register_own(world, use);
      if (own_) return;
      block_ = arena_of(world).allocate(bytes, Stream{}, ArenaEnd::upper);
      key_ = network_.arena_key(world.rank());
    });
  } catch (const std::exception&) {
    deregister();
    throw;
  }
}

NetworkMemory::~NetworkMemory() {
  if (!is_known_) {
    deregister();
    return;
  }
  block_.quarantine();
  if (own_) network_.keep(own_);
}

void NetworkMemory::register_own(World& world, Use use) {
  if (use == Use::puts_alone && network_.takes_gpu_memory() && register_on_gpu(world)) return;
  if (network_.reaches_arena()) return;
  own_ = std::make_shared<DeviceMemory>(accelerator_of(world), bytes_, DeviceMemory::Kind::shared);
  key_ = network_.register_memory(data(), bytes_);
}

/// Returns false if the network takes no more of it: a card's window to the GPU may be small.
bool NetworkMemory::register_on_gpu(World& world) {
  own_ = std::make_shared<DeviceMemory>(accelerator_of(world), bytes_, DeviceMemory::Kind::device);
  try {
    key_ = network_.register_gpu_memory(data(), bytes_);
  } catch (const OsError&) {
    own_.reset();
  }
  return own_ != nullptr;
}

void NetworkMemory::deregister() {
  if (!own_ || key_ == 0) return;
  try {
    network_.deregister(key_);
  } catch (const std::exception&) {
    network_.keep(own_);  // A request that has not ended still reads it.
  }
}

}  // namespace tokenyard
