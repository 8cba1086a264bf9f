#pragma once

#include "megakernel/tasks/builtin_list.hpp"

namespace tokenyard::megakernel {

DEFINE_MEGAKERNEL(builtin_kernel, BuiltinTasks)
DEFINE_MEGAKERNEL(placed_builtin_kernel, Placed<BuiltinTasks>)

}  // namespace tokenyard::megakernel
