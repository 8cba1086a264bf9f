/// The tasks of a dense decoder whose stages hand on words: layer.hpp tells how.
#pragma once

#include "megakernel/tasks/layer.hpp"
#include "megakernel/tasks/logits.hpp"
#include "megakernel/tasks/project_attention.hpp"
#include "megakernel/tasks/send_best.hpp"
#include "megakernel/worker_kernel.hpp"

namespace tokenyard::megakernel {

/// Kernels of their own: their code is what they fetch, and all else would lie in between.
template <class Kind, class... Others>
using DenseTaskList = TaskList<ProjectQkv<Kind>, AttendSplit, ProjectAttention<Kind>, GateUp<Kind>,
                               ProjectDown<Kind>, ProjectLogits<Kind>, NextToken, Others...>;
using DenseTasks = DenseTaskList<Alone>;
using SharedDenseTasks = DenseTaskList<Together, SendBest>;

}  // namespace tokenyard::megakernel
