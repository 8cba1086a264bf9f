#include "bench/networks/network_bodies_kernel.hpp"
