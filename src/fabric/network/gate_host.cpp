#include "fabric/network/gate_kernel.hpp"
