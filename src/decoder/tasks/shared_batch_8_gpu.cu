#include "decoder/tasks/shared_batch_8_kernel.hpp"
