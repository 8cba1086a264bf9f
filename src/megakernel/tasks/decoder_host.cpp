#include "megakernel/tasks/decoder.hpp"
#include "megakernel/tasks/decoder_kernel.hpp"

namespace tokenyard::megakernel {

const TaskSet& decoder_tasks() {
  static const TaskSet set =
      task_set<DecoderTasks>(decoder_kernel.entry, placed_decoder_kernel.entry);
  return set;
}

}  // namespace tokenyard::megakernel
