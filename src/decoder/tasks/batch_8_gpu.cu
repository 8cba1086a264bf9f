#include "decoder/tasks/batch_8_kernel.hpp"
