#include "device/matrix_kernels.hpp"
