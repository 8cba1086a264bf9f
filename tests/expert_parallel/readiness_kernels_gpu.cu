#include "expert_parallel/readiness_kernels.hpp"
