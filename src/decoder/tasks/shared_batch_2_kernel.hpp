#pragma once

#include "decoder/tasks/dense_list.hpp"

namespace tokenyard::megakernel {

using SharedBatchOf2 = SharedBatchedDenseTasks<2>;
DEFINE_MEGAKERNEL(shared_batch_2_kernel, SharedBatchOf2)

}  // namespace tokenyard::megakernel
