/// The built-in task set: every task of a Llama-shaped model. Graphs that are not built in C++
/// consist of these.
#pragma once

#include "tokenyard/megakernel/task_set.hpp"

namespace tokenyard::megakernel {

const TaskSet& builtin_tasks();

}  // namespace tokenyard::megakernel
