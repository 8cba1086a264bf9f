#pragma once

#include "decoder/tasks/dense_list.hpp"

namespace tokenyard::megakernel {

using BatchOf8 = BatchedDenseTasks<8>;
DEFINE_MEGAKERNEL(batch_8_kernel, BatchOf8)

}  // namespace tokenyard::megakernel
