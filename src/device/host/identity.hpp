#pragma once

#include "device/host/machine.hpp"
#include "device/identity.hpp"

namespace tokenyard {

namespace thread {
TOKENYARD_DEVICE uint32_t index() {
  return host_body::machine().identity().thread;
}
}  // namespace thread
namespace warp {
TOKENYARD_DEVICE uint32_t index() {
  return thread::index() / kWarpLanes;
}
TOKENYARD_DEVICE uint32_t lane() {
  return thread::index() % kWarpLanes;
}
TOKENYARD_DEVICE uint32_t count() {
  return host_body::machine().identity().threads / kWarpLanes;
}
}  // namespace warp
namespace block {
TOKENYARD_DEVICE uint32_t index() {
  return host_body::machine().identity().block;
}
TOKENYARD_DEVICE uint32_t threads() {
  return host_body::machine().identity().threads;
}
}  // namespace block
namespace grid {
TOKENYARD_DEVICE uint32_t blocks() {
  return host_body::machine().identity().blocks;
}
}  // namespace grid

}  // namespace tokenyard
