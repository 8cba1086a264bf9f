#include "decoder/tasks/dense.hpp"
#include "decoder/tasks/shared_batch_8_kernel.hpp"

namespace tokenyard::megakernel {

const TaskSet& shared_batch_8_tasks() {
  static const TaskSet set = task_set<SharedBatchOf8>(shared_batch_8_kernel.entry);
  return set;
}

}  // namespace tokenyard::megakernel
