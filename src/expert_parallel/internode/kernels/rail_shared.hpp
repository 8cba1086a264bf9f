/// The warps of a block, and its shared memory. Both kernels between hosts share them.
#pragma once

#include "device/bulk.hpp"
#include "device/identity.hpp"
#include "expert_parallel/internode/kernels/across_hosts.hpp"
#include "expert_parallel/throughput/kernels/call.hpp"

namespace tokenyard::internode {

/// Warps of a block before those that move rows. The first drives what this rank sends, the second
/// what it receives, each with a lane per link; the third is block 0's and learns what all do.
inline constexpr uint32_t kSendCoordinator = 0, kForwardCoordinator = 1, kReceiver = 2;
inline constexpr uint32_t kFirstMover = 3;
inline constexpr uint32_t kMoversMax = 16;
inline constexpr uint32_t kHeldMax = 2;  ///< slots that a mover of a dispatch holds at most
inline constexpr uint32_t kThreadsMax = (kFirstMover + kMoversMax) * kWarpLanes;

/// Barriers of these kernels; 0 is block::sync()'s.
enum class RailBarrier : uint32_t {
  moved = 1,  ///< warps that move rows: all have
};

inline constexpr uint32_t kNone = 0xffffffff;

struct RailShared {
  throughput::CallShared call;
  Completion full[kMoversMax * kHeldMax];  ///< dispatch: loads of slots
  uint32_t refused_token;   ///< token << 2 | RefusalKind of the block's first bad token
  uint32_t refusing_block;  ///< first block of this rank that refuses a token
  uint32_t differing_rank;  ///< first rank whose rows differ from those of rank 0
};

}  // namespace tokenyard::internode
