#include "device/function_kernels.hpp"
