#include "decoder/tasks/shared_dense_kernel.hpp"
