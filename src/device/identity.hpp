/// Indices of the running thread, warp and block. Blocks and grids have one dimension.
///
/// Ranks that share one GPU run as the rows of one grid. A kernel sees only its own row, and cannot
/// tell that there are others.
#pragma once

#include <cstdint>

#include "device/macros.hpp"

namespace tokenyard {

inline constexpr uint32_t kWarpLanes = 32;

namespace thread {
TOKENYARD_DEVICE uint32_t index();  ///< in its block
}
namespace warp {
TOKENYARD_DEVICE uint32_t index();  ///< in its block
TOKENYARD_DEVICE uint32_t lane();   ///< 0 .. 31
TOKENYARD_DEVICE uint32_t count();  ///< warps in the block; blocks are whole warps
}  // namespace warp
namespace block {
TOKENYARD_DEVICE uint32_t index();    ///< in its grid (on a shared GPU: in its rank's row)
TOKENYARD_DEVICE uint32_t threads();  ///< a multiple of 32
}  // namespace block
namespace grid {
TOKENYARD_DEVICE uint32_t blocks();
}

}  // namespace tokenyard

#if TOKENYARD_DEVICE_BODY
#include "device/cuda/identity.hpp"
#else
#include "device/host/identity.hpp"
#endif
