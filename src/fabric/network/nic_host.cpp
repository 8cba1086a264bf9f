#include "fabric/network/nic_kernel.hpp"
