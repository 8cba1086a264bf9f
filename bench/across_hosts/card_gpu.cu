#include "bench/across_hosts/card_kernel.hpp"
