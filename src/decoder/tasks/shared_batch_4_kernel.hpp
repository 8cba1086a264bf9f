#pragma once

#include "decoder/tasks/dense_list.hpp"

namespace tokenyard::megakernel {

using SharedBatchOf4 = SharedBatchedDenseTasks<4>;
DEFINE_MEGAKERNEL(shared_batch_4_kernel, SharedBatchOf4)

}  // namespace tokenyard::megakernel
