#pragma once

#include "device/host/machine.hpp"
#include "device/identity.hpp"

namespace tokenyard {

namespace thread {
DEVICE uint32_t index() {
  return host_body::machine().identity().thread;
}
}  // namespace thread
namespace warp {
DEVICE uint32_t index() {
  return thread::index() / kWarpLanes;
}
DEVICE uint32_t lane() {
  return thread::index() % kWarpLanes;
}
DEVICE uint32_t count() {
  return host_body::machine().identity().threads / kWarpLanes;
}
}  // namespace warp
namespace block {
DEVICE uint32_t index() {
  return host_body::machine().identity().block;
}
DEVICE uint32_t threads() {
  return host_body::machine().identity().threads;
}
}  // namespace block
namespace grid {
DEVICE uint32_t blocks() {
  return host_body::machine().identity().blocks;
}
}  // namespace grid

}  // namespace tokenyard
