#include "megakernel/tasks/batch_4_kernel.hpp"
#include "megakernel/tasks/dense.hpp"

namespace tokenyard::megakernel {

const TaskSet& batch_4_tasks() {
  static const TaskSet set = task_set<BatchOf4>(batch_4_kernel.entry);
  return set;
}

}  // namespace tokenyard::megakernel
