#include "megakernel/tasks/builtin_kernel.hpp"
