/// Indices on a GPU. The grid's y dimension distinguishes ranks that share one GPU; no word returns
/// it.
#pragma once

#include "device/identity.hpp"

namespace tokenyard {

namespace thread {
TOKENYARD_DEVICE uint32_t index() {
  return threadIdx.x;
}
}  // namespace thread

namespace warp {
// Blocks have one dimension, so a warp is 32 consecutive threads. No shuffle is used to tell the
// compiler that the index is the same in all lanes, because lanes may call this after diverging.
TOKENYARD_DEVICE uint32_t index() {
  return threadIdx.x / kWarpLanes;
}
TOKENYARD_DEVICE uint32_t lane() {
  return threadIdx.x % kWarpLanes;
}
TOKENYARD_DEVICE uint32_t count() {
  return blockDim.x / kWarpLanes;
}
}  // namespace warp

namespace block {
TOKENYARD_DEVICE uint32_t index() {
  return blockIdx.x;
}
TOKENYARD_DEVICE uint32_t threads() {
  return blockDim.x;
}
}  // namespace block

namespace grid {
TOKENYARD_DEVICE uint32_t blocks() {
  return gridDim.x;
}
}  // namespace grid

}  // namespace tokenyard
