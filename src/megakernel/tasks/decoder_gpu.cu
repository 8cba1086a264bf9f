#include "megakernel/tasks/decoder_kernel.hpp"
