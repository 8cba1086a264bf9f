#include "device/word_kernels.hpp"
