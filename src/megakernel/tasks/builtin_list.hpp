/// The tasks of a Llama-shaped model whose stages are ordered by counters.
#pragma once

#include "megakernel/kernels/worker_kernel.hpp"
#include "megakernel/tasks/attention.hpp"
#include "megakernel/tasks/counts.hpp"
#include "megakernel/tasks/exchange.hpp"
#include "megakernel/tasks/experts.hpp"
#include "megakernel/tasks/linear.hpp"
#include "megakernel/tasks/token.hpp"

namespace tokenyard::megakernel {

using BuiltinTasks =
    TaskList<Embed, Linear, GatedLinear, Attention, PickBest, NextToken, CopyToPeer, Reduce,
             RouteToken, ExpertGated, ExpertDown, ExpectSignals, SignalOften>;

}  // namespace tokenyard::megakernel
