#include "megakernel/tasks/shared_batch_2_kernel.hpp"
