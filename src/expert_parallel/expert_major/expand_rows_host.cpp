#include "expert_parallel/expert_major/expand_rows_kernel.hpp"
