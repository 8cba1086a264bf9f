#include "fabric/network_kernel_definitions.hpp"
