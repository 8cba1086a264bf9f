#pragma once

#include "decoder/tasks/dense_list.hpp"

namespace tokenyard::megakernel {

DEFINE_MEGAKERNEL(shared_dense_kernel, SharedDenseTasks)

}  // namespace tokenyard::megakernel
