#include "expert_parallel/throughput/dispatch_kernel.hpp"
