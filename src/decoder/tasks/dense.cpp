#include "decoder/tasks/dense.hpp"

#include <fmt/core.h>

#include "decoder/tasks/dense_list.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard::megakernel {

// CMakeLists.txt lists these kernels, each with its task list.
TOKENYARD_DECLARE_KERNEL(dense_kernel, RunParams);
TOKENYARD_DECLARE_KERNEL(batch_2_kernel, RunParams);
TOKENYARD_DECLARE_KERNEL(batch_4_kernel, RunParams);
TOKENYARD_DECLARE_KERNEL(batch_8_kernel, RunParams);
TOKENYARD_DECLARE_KERNEL(shared_dense_kernel, RunParams);
TOKENYARD_DECLARE_KERNEL(shared_batch_2_kernel, RunParams);
TOKENYARD_DECLARE_KERNEL(shared_batch_4_kernel, RunParams);
TOKENYARD_DECLARE_KERNEL(shared_batch_8_kernel, RunParams);

namespace {

template <class List>
const TaskSet& set_of(const Kernel<RunParams>& kernel) {
  static const TaskSet set = task_set<List>(kernel.entry);
  return set;
}

}  // namespace

const TaskSet& dense_tasks(const DenseKernel& kind) {
  switch (kind.sequences) {
    case 1:
      return kind.alone ? set_of<DenseTasks>(dense_kernel)
                        : set_of<SharedDenseTasks>(shared_dense_kernel);
    case 2:
      return kind.alone ? set_of<BatchedDenseTasks<2>>(batch_2_kernel)
                        : set_of<SharedBatchedDenseTasks<2>>(shared_batch_2_kernel);
    case 4:
      return kind.alone ? set_of<BatchedDenseTasks<4>>(batch_4_kernel)
                        : set_of<SharedBatchedDenseTasks<4>>(shared_batch_4_kernel);
    case 8:
      return kind.alone ? set_of<BatchedDenseTasks<8>>(batch_8_kernel)
                        : set_of<SharedBatchedDenseTasks<8>>(shared_batch_8_kernel);
    default:
      throw InvalidArgument("sequences", "1, 2, 4 or 8", fmt::format("{}", kind.sequences));
  }
}

}  // namespace tokenyard::megakernel
