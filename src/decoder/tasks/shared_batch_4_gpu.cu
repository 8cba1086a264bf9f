#include "decoder/tasks/shared_batch_4_kernel.hpp"
