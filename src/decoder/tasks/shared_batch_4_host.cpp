#include "decoder/tasks/dense.hpp"
#include "decoder/tasks/shared_batch_4_kernel.hpp"

namespace tokenyard::megakernel {

const TaskSet& shared_batch_4_tasks() {
  static const TaskSet set = task_set<SharedBatchOf4>(shared_batch_4_kernel.entry);
  return set;
}

}  // namespace tokenyard::megakernel
