#include "megakernel/tasks/batch_4_kernel.hpp"
