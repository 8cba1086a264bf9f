#include "decoder/tasks/batch_8_kernel.hpp"
#include "decoder/tasks/dense.hpp"

namespace tokenyard::megakernel {

const TaskSet& batch_8_tasks() {
  static const TaskSet set = task_set<BatchOf8>(batch_8_kernel.entry);
  return set;
}

}  // namespace tokenyard::megakernel
