#include "expert_parallel/expert_major/dispatch_by_expert_kernel.hpp"
