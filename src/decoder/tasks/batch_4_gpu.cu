#include "decoder/tasks/batch_4_kernel.hpp"
