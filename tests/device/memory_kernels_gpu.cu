#include "device/memory_kernels.hpp"
