#include "device/number_kernels.hpp"
