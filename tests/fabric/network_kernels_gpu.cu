#include "fabric/network_kernels.hpp"
