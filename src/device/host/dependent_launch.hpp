/// No-ops: on a host the kernels of a stream run one after another, without overlap.
#pragma once

#include "device/dependent_launch.hpp"

namespace tokenyard::grid {

TOKENYARD_DEVICE void wait_for_previous() {}
TOKENYARD_DEVICE void let_next_start() {}
template <class Params>
TOKENYARD_DEVICE void fetch_parameters(const Params&, const void*) {}

}  // namespace tokenyard::grid
