#include "decoder/tasks/batch_2_kernel.hpp"
