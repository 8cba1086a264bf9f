/// Every task that a Llama-shaped model is made of.
#pragma once

#include "megakernel/tasks/attention.hpp"
#include "megakernel/tasks/exchange.hpp"
#include "megakernel/tasks/experts.hpp"
#include "megakernel/tasks/layer.hpp"
#include "megakernel/tasks/linear.hpp"
#include "megakernel/tasks/logits.hpp"
#include "megakernel/tasks/project_attention.hpp"
#include "megakernel/tasks/token.hpp"
#include "megakernel/worker_kernel.hpp"

namespace tokenyard::megakernel {

using DecoderTasks = TaskList<Embed, Linear, GatedLinear, Attention, PickBest, NextToken,
                              CopyToPeer, Reduce, RouteToken, ExpertGated, ExpertDown, ProjectQkv,
                              AttendSplit, ProjectAttention, GateUp, ProjectDown, ProjectLogits>;

}  // namespace tokenyard::megakernel
