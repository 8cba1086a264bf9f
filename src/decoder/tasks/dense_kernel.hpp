#pragma once

#include "decoder/tasks/dense_list.hpp"

namespace tokenyard::megakernel {

DEFINE_MEGAKERNEL(dense_kernel, DenseTasks)

}  // namespace tokenyard::megakernel
