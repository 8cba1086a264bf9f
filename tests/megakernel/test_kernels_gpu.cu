#include "megakernel/step_kernel.hpp"
#include "megakernel/touch_kernel.hpp"
