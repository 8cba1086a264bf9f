/// Waits until stages of a ring may be loaded again.
#pragma once

#include "device/device.hpp"

namespace tokenyard::throughput {

/// Waits until all but `lag` commits have been read. bulk::wait_read needs a constant; plans use
/// only these.
TOKENYARD_DEVICE void wait_read_but(uint32_t lag) {
  switch (lag) {
    case 22:
      return bulk::wait_read<22>();
    case 16:
      return bulk::wait_read<16>();
    case 10:
      return bulk::wait_read<10>();
    case 6:
      return bulk::wait_read<6>();
    case 4:
      return bulk::wait_read<4>();
    case 2:
      return bulk::wait_read<2>();
    case 1:
      return bulk::wait_read<1>();
    default:
      return bulk::wait_read<0>();
  }
}

}  // namespace tokenyard::throughput
