/// The task set that comes with the megakernel: every task of a Llama-shaped model. A graph that is
/// not written in C++ consists of these.
#pragma once

#include "tokenyard/megakernel/task_set.hpp"

namespace tokenyard::megakernel {

const TaskSet& builtin_tasks();

}  // namespace tokenyard::megakernel
