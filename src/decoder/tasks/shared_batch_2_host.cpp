#include "decoder/tasks/dense.hpp"
#include "decoder/tasks/shared_batch_2_kernel.hpp"

namespace tokenyard::megakernel {

const TaskSet& shared_batch_2_tasks() {
  static const TaskSet set = task_set<SharedBatchOf2>(shared_batch_2_kernel.entry);
  return set;
}

}  // namespace tokenyard::megakernel
