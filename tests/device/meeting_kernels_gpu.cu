#include "device/meeting_kernels.hpp"
