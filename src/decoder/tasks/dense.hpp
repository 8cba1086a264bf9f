/// The kernels of DenseDecoder.
#pragma once

#include "tokenyard/megakernel/task_set.hpp"

namespace tokenyard::megakernel {

const TaskSet& dense_tasks();
/// Of several ranks that share a model.
const TaskSet& shared_dense_tasks();
/// Of several sequences.
const TaskSet& batch_2_tasks();
const TaskSet& batch_4_tasks();
const TaskSet& batch_8_tasks();
/// Of both.
const TaskSet& shared_batch_2_tasks();
const TaskSet& shared_batch_4_tasks();
const TaskSet& shared_batch_8_tasks();

}  // namespace tokenyard::megakernel
