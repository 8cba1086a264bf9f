#include "decoder/tasks/batch_4_kernel.hpp"
#include "decoder/tasks/dense.hpp"

namespace tokenyard::megakernel {

const TaskSet& batch_4_tasks() {
  static const TaskSet set = task_set<BatchOf4>(batch_4_kernel.entry);
  return set;
}

}  // namespace tokenyard::megakernel
