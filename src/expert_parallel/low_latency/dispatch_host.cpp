#include "expert_parallel/low_latency/dispatch_kernel.hpp"
