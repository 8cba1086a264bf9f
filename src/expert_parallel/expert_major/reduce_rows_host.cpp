#include "expert_parallel/expert_major/reduce_rows_kernel.hpp"
