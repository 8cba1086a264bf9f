#pragma once

#include "device/part.hpp"

namespace tokenyard {

TOKENYARD_DEVICE void begin_part(uint32_t) {}

}  // namespace tokenyard
