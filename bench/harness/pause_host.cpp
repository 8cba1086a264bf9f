#include "bench/harness/pause_kernel.hpp"
