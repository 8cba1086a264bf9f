#include "expert_parallel/throughput/readiness_kernels.hpp"
