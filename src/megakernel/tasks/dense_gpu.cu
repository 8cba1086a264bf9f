#include "megakernel/tasks/dense_kernel.hpp"
