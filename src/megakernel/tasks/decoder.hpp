/// The kernel of a decoder: every task that a Llama-shaped model is made of. (dense.hpp has the
/// faster one of models that are dense.)
#pragma once

#include "tokenyard/megakernel/task_set.hpp"

namespace tokenyard::megakernel {

const TaskSet& decoder_tasks();

}  // namespace tokenyard::megakernel
