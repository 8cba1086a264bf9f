/// Memory of a rank that its kernels share with its network: a block of the arena, or, where the
/// network does not reach the arena (of a GPU), memory of its own that host and kernels use. Memory
/// for nothing but peers' puts, none of them inline, may lie on the GPU even there.
#pragma once

#include <memory>

#include "device/device_memory.hpp"
#include "fabric/arena.hpp"
#include "fabric/network/network.hpp"

namespace tokenyard {

class World;

class NetworkMemory {
 public:
  enum class Use : uint8_t {
    any,
    puts_alone,  ///< only targets of peers' puts that are not inline
  };
  /// Collective. Throws on all ranks alike, as collective_step does, if a rank cannot pin or
  /// register memory, or its arena has no room.
  NetworkMemory(World& world, size_t bytes, Use use = Use::any);
  /// Where peers may still write, the memory stays as it is while the network exists.
  ~NetworkMemory();
  NetworkMemory(const NetworkMemory&) = delete;
  NetworkMemory& operator=(const NetworkMemory&) = delete;

  std::byte* data() const { return own_ ? own_->as<std::byte>() : block_.data(); }
  size_t bytes() const { return bytes_; }
  /// Returns the place by which peers put here. Its key is that of sources here, too.
  NetworkTarget target() const { return {.key = key_, .offset = block_.offset()}; }
  /// Says that peers may write here from now on.
  void make_known() { is_known_ = true; }
  /// Says that no peer writes here any more.
  void give_back() { is_known_ = false; }

 private:
  void register_own(World& world, Use use);
  bool register_on_gpu(World& world);
  void deregister();

  Network& network_;
  const size_t bytes_;
  ArenaBlock block_;
  std::shared_ptr<DeviceMemory> own_;  ///< outside of the arena
  MemoryKey key_ = 0;
  bool is_known_ = false;  ///< to peers
};

}  // namespace tokenyard
