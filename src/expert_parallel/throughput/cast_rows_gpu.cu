#include "expert_parallel/throughput/cast_rows_kernel.hpp"
