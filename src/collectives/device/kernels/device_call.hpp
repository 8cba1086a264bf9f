/// The parts of a call that are alike for all protocols.
#pragma once

#include <cstdint>

#include "collectives/device/kernels/call_word.hpp"
#include "collectives/device/kernels/movement.hpp"
#include "collectives/device/kernels/window.hpp"
#include "device/block_deadline.hpp"

namespace tokenyard::device_collectives {

/// The side of a message on which a warp claims chunks.
enum class Role : uint32_t { sender, receiver };
inline constexpr uint32_t kRoles = 2;

/// Words of a rank's own memory that persist between its calls. The epoch is here and not in the
/// parameters so that a CUDA graph can replay a call. Each block reads the epoch of its own index
/// and advances all those that equal its index modulo the number of blocks: no block depends on
/// another one, and each call may have another number of blocks.
struct Workspace {
  uint64_t epochs[kBlocksMax];  ///< epoch of the previous call
  uint64_t claims[2][kRoles];   ///< by the parity of the epoch: next chunk. Each call zeroes those
                                ///< of the next one
};

struct CallParams {
  uint32_t rank, ranks;   ///< this member, and how many there are
  EmptySlots empty = {};  ///< for reports, which name slots
  Signature signature;
  Movement movement;
  DataType type;
  ReduceOp op;
  double factor;
  const std::byte* input;
  std::byte* result;
  Windows windows;
  Workspace* workspace;
  WaitContext wait_context;
};

/// A block's knowledge of the call, in shared memory.
struct CallShared {
  uint64_t epoch;
  bool failed;  ///< an earlier call has failed
};

}  // namespace tokenyard::device_collectives
