#include "expert_parallel/low_latency/combine_kernel.hpp"
