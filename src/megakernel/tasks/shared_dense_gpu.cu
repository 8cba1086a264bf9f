#include "megakernel/tasks/shared_dense_kernel.hpp"
