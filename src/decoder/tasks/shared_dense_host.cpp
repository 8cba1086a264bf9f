#include "decoder/tasks/dense.hpp"
#include "decoder/tasks/shared_dense_kernel.hpp"

namespace tokenyard::megakernel {

const TaskSet& shared_dense_tasks() {
  static const TaskSet set = task_set<SharedDenseTasks>(shared_dense_kernel.entry);
  return set;
}

}  // namespace tokenyard::megakernel
