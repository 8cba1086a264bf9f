#include "decoder/tasks/shared_batch_2_kernel.hpp"
