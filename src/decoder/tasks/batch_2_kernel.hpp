#pragma once

#include "decoder/tasks/dense_list.hpp"

namespace tokenyard::megakernel {

using BatchOf2 = BatchedDenseTasks<2>;
DEFINE_MEGAKERNEL(batch_2_kernel, BatchOf2)

}  // namespace tokenyard::megakernel
