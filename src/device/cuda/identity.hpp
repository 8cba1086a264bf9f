/// Identity on a GPU. The y dimension of the grid tells the ranks that share one GPU apart, and no
/// word shows it.
#pragma once

#include "device/identity.hpp"

namespace tokenyard {

namespace thread {
DEVICE uint32_t index() {
  return threadIdx.x;
}
}  // namespace thread

namespace warp {
// Blocks have one dimension, so a warp is 32 neighbouring threads. Not by a shuffle, which would
// tell the compiler that the index is the same in all lanes: lanes may ask when they have parted.
DEVICE uint32_t index() {
  return threadIdx.x / kWarpLanes;
}
DEVICE uint32_t lane() {
  return threadIdx.x % kWarpLanes;
}
DEVICE uint32_t count() {
  return blockDim.x / kWarpLanes;
}
}  // namespace warp

namespace block {
DEVICE uint32_t index() {
  return blockIdx.x;
}
DEVICE uint32_t threads() {
  return blockDim.x;
}
}  // namespace block

namespace grid {
DEVICE uint32_t blocks() {
  return gridDim.x;
}
}  // namespace grid

}  // namespace tokenyard
