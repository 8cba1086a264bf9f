#include "megakernel/tasks/batch_8_kernel.hpp"
