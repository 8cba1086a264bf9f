#pragma once

#include "decoder/tasks/dense_list.hpp"

namespace tokenyard::megakernel {

using SharedBatchOf8 = SharedBatchedDenseTasks<8>;
DEFINE_MEGAKERNEL(shared_batch_8_kernel, SharedBatchOf8)

}  // namespace tokenyard::megakernel
