#include "megakernel/tasks/batch_2_kernel.hpp"
