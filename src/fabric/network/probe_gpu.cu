#include "fabric/network/probe_kernel.hpp"
