/// The tasks of a dense decoder whose stages pass on words (layer.hpp).
#pragma once

#include "decoder/tasks/layer.hpp"
#include "decoder/tasks/logits.hpp"
#include "decoder/tasks/next_tokens.hpp"
#include "decoder/tasks/project_attention.hpp"
#include "decoder/tasks/send_best.hpp"
#include "megakernel/kernels/worker_kernel.hpp"

namespace tokenyard::megakernel {

/// These tasks have kernels of their own, because other tasks' code in between would slow
/// instruction fetches.
template <class Kind, class... Others>
struct DenseTaskList : TaskList<ProjectQkv<Kind>, AttendSplit, ProjectAttention<Kind>, GateUp<Kind>,
                                ProjectDown<Kind>, ProjectLogits<Kind>, Others...> {
  static constexpr bool kOwnPaths = false;
  static constexpr bool kSettles = Kind::kSequences == 1;
  static constexpr bool kScheduled = false;  // Carried events need a static placement.
};
using DenseTasks = DenseTaskList<Alone<1>, NextToken>;
using SharedDenseTasks = DenseTaskList<Together<1>, SendBest<Together<1>>, NextToken>;
template <uint32_t sequences>
using BatchedDenseTasks = DenseTaskList<Alone<sequences>, NextTokens<Alone<sequences>>>;
template <uint32_t sequences>
using SharedBatchedDenseTasks = DenseTaskList<Together<sequences>, SendBest<Together<sequences>>,
                                              NextTokens<Together<sequences>>>;

}  // namespace tokenyard::megakernel
