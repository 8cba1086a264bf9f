#pragma once

#include "decoder/tasks/dense_list.hpp"

namespace tokenyard::megakernel {

using BatchOf4 = BatchedDenseTasks<4>;
DEFINE_MEGAKERNEL(batch_4_kernel, BatchOf4)

}  // namespace tokenyard::megakernel
