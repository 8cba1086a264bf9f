#include "decoder/tasks/batch_2_kernel.hpp"
#include "decoder/tasks/dense.hpp"

namespace tokenyard::megakernel {

const TaskSet& batch_2_tasks() {
  static const TaskSet set = task_set<BatchOf2>(batch_2_kernel.entry);
  return set;
}

}  // namespace tokenyard::megakernel
