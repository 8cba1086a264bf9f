#include "expert_parallel/throughput/combine_kernel.hpp"
