#pragma once

#include "megakernel/touch_task.hpp"

namespace tokenyard::megakernel {

TOKENYARD_DEFINE_MEGAKERNEL(touch_kernel, TouchTasks)

}  // namespace tokenyard::megakernel
