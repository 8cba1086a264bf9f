#pragma once

#include "megakernel/tasks/builtin_list.hpp"

namespace tokenyard::megakernel {

TOKENYARD_DEFINE_MEGAKERNEL(builtin_kernel, BuiltinTasks)
TOKENYARD_DEFINE_MEGAKERNEL(placed_builtin_kernel, Placed<BuiltinTasks>)

}  // namespace tokenyard::megakernel
