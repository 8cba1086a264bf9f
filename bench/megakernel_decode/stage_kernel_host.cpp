#include "bench/megakernel_decode/stage_kernel_body.hpp"
