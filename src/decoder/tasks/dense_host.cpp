#include "decoder/tasks/dense.hpp"
#include "decoder/tasks/dense_kernel.hpp"

namespace tokenyard::megakernel {

const TaskSet& dense_tasks() {
  static const TaskSet set = task_set<DenseTasks>(dense_kernel.entry);
  return set;
}

}  // namespace tokenyard::megakernel
