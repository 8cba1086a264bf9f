/// The kernels of DenseDecoder.
#pragma once

#include <cstdint>

#include "tokenyard/megakernel/task_set.hpp"

namespace tokenyard::megakernel {

/// The ranks that share a model.
enum class DenseRanks : uint8_t { one, on_one_host, on_several_hosts };

struct DenseKernel {
  DenseRanks ranks = DenseRanks::one;
  uint32_t sequences = 1;  ///< decoded together: 1, 2, 4 or 8
};
/// Returns the task set whose kernel has the code of this kind and no other.
const TaskSet& dense_tasks(const DenseKernel& kind = {});

}  // namespace tokenyard::megakernel
