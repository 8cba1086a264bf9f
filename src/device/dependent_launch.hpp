/// Programmatic dependent launch: a kernel's start may overlap the end of its predecessor in the
/// stream (LaunchShape::overlap_previous).
#pragma once

#include "device/macros.hpp"

namespace tokenyard::grid {

/// Waits until the previous kernel has ended and its writes are visible. No-op without overlap.
DEVICE void wait_for_previous();
/// Lets the next kernel start, once every block has called this or ended.
DEVICE void let_next_start();
/// By one warp of a block, before it waits: brings the launch's parameters near. Otherwise each
/// line of them is waited for where it is first asked for, one after the other. `anywhere`: any
/// address in this GPU's memory that the kernel may read; what lies there does not matter.
template <class Params>
DEVICE void fetch_parameters(const Params& params, const void* anywhere);

}  // namespace tokenyard::grid

#if TOKENYARD_DEVICE_BODY
#include "device/cuda/dependent_launch.hpp"
#else
#include "device/host/dependent_launch.hpp"
#endif
