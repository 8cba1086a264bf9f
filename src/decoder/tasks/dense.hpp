/// The kernels of DenseDecoder.
#pragma once

#include <cstdint>

#include "tokenyard/megakernel/task_set.hpp"

namespace tokenyard::megakernel {

struct DenseKernel {
  bool alone = true;       ///< whether one rank has the whole model
  uint32_t sequences = 1;  ///< decoded together: 1, 2, 4 or 8
};
/// Returns the task set whose kernel has the code of this kind and no other.
const TaskSet& dense_tasks(const DenseKernel& kind = {});

}  // namespace tokenyard::megakernel
