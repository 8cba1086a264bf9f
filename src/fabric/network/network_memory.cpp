#include "fabric/network/network_memory.hpp"

#include <fmt/format.h>

#include <exception>
#include <span>
#include <string>

#include "fabric/world_access.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard {

NetworkMemory::NetworkMemory(World& world, size_t bytes)
    : network_(*network_of(world)), bytes_(bytes) {
  std::string why;
  try {
    // Some ranks' arenas may be reached, and others' not.
    if (!network_.reaches_arena()) pin(world);
  } catch (const Error& error) {
    why = error.what();
  }
  try {
    require_on_all(world, why);
  } catch (const std::exception&) {
    unpin();
    throw;
  }
  if (pinned_) return;
  block_ = arena_of(world).allocate(bytes, Stream{}, ArenaEnd::upper);
  key_ = network_.arena_key(world.rank());
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

/// `why`: what has failed on this rank; empty if nothing has.
void NetworkMemory::require_on_all(World& world, const std::string& why) {
  const std::string what = "memory for a network";
  const auto failures = world.all_gather(std::as_bytes(std::span(why)), what);
  for (const uint32_t rank : present_ranks(world)) {
    if (failures[rank].empty()) continue;
    const auto* const text = reinterpret_cast<const char*>(failures[rank].data());
    throw Unsupported(what,
                      fmt::format("rank {}: {}", rank, std::string(text, failures[rank].size())));
  }
}

}  // namespace tokenyard
