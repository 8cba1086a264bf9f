#include "fabric/contract_kernels.hpp"
