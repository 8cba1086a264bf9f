/// The kernel of DenseDecoder.
#pragma once

#include "tokenyard/megakernel/task_set.hpp"

namespace tokenyard::megakernel {

const TaskSet& dense_tasks();

}  // namespace tokenyard::megakernel
