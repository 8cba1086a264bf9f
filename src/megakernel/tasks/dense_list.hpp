/// The tasks of a dense decoder whose stages hand on words: layer.hpp tells how.
#pragma once

#include "megakernel/tasks/layer.hpp"
#include "megakernel/tasks/logits.hpp"
#include "megakernel/tasks/project_attention.hpp"
#include "megakernel/tasks/token.hpp"
#include "megakernel/worker_kernel.hpp"

namespace tokenyard::megakernel {

/// A kernel of their own: its code is what it fetches, and all else would lie in between.
using DenseTasks = TaskList<ProjectQkv, AttendSplit, ProjectAttention, GateUp, ProjectDown,
                            ProjectLogits, NextToken>;

}  // namespace tokenyard::megakernel
