#include "device/wait_kernels.hpp"
