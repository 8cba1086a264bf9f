#include "decoder/tasks/dense_kernel.hpp"
