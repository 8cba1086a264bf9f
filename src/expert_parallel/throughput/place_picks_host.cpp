#include "expert_parallel/throughput/place_picks_kernel.hpp"
