/// Programmatic dependent launch: a kernel's start may overlap the end of its predecessor in the
/// stream (LaunchShape::overlap_previous).
#pragma once

#include "device/macros.hpp"

namespace tokenyard::grid {

/// Waits until the previous kernel has ended and its writes are visible. Without overlap: no-op.
TOKENYARD_DEVICE void wait_for_previous();
/// Lets the next kernel start once every block has called this or ended. Orders no memory.
TOKENYARD_DEVICE void let_next_start();
/// Brings the launch's parameters into cache. One warp per block calls it before it waits;
/// otherwise each of their cache lines misses in turn at its first use. `anywhere` is any address
/// in this GPU's memory that the kernel may read; its content does not matter.
template <class Params>
TOKENYARD_DEVICE void fetch_parameters(const Params& params, const void* anywhere);

}  // namespace tokenyard::grid

#if TOKENYARD_DEVICE_BODY
#include "device/cuda/dependent_launch.hpp"
#else
#include "device/host/dependent_launch.hpp"
#endif
