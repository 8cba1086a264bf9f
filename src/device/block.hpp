/// Resources shared by the threads of a block: barriers and shared memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/identity.hpp"

namespace tokenyard {

namespace block {

/// Waits for all threads of the block, and orders their memory accesses. No thread may end before
/// the block's last barrier: a GPU counts an ended thread as present, the host raises an error.
TOKENYARD_DEVICE void sync();
/// Does what `sync` does, and returns whether any thread's predicate held.
TOKENYARD_DEVICE bool any(bool predicate);

/// Returns the block's shared memory as the one struct that TOKENYARD_DEFINE_KERNEL names.
/// It is not initialised, and at least 128-byte aligned.
template <class Shared>
TOKENYARD_DEVICE Shared& shared();
/// Returns the LaunchShape::extra_shared_bytes bytes behind that struct, 128-byte aligned.
template <class Shared>
TOKENYARD_DEVICE std::byte* shared_tail();

}  // namespace block

/// One of the block's barriers 1 .. 15; 0 is block::sync()'s. A kernel lists all it uses in one
/// enum. `threads` (a multiple of 32) take part, counting those that only arrive.
class NamedBarrier {
 public:
  template <class Enum>
  TOKENYARD_DEVICE explicit NamedBarrier(Enum barrier) : id_(static_cast<uint32_t>(barrier)) {}
  TOKENYARD_DEVICE void sync(uint32_t threads) const;
  TOKENYARD_DEVICE void arrive(uint32_t threads) const;

 private:
  uint32_t id_;
};

}  // namespace tokenyard

#if TOKENYARD_DEVICE_BODY
#include "device/cuda/block.hpp"
#else
#include "device/host/block.hpp"
#endif
