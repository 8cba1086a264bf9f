#include "megakernel/hold_kernel_body.hpp"
#include "megakernel/look_kernel_body.hpp"
#include "megakernel/step_kernel.hpp"
#include "megakernel/touch_kernel.hpp"
