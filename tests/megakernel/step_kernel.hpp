#pragma once

#include "megakernel/step_task.hpp"

namespace tokenyard::megakernel {

TOKENYARD_DEFINE_MEGAKERNEL(step_kernel, StepTasks)

}  // namespace tokenyard::megakernel
