#pragma once

#include "device/part.hpp"

namespace tokenyard {

DEVICE void begin_part(uint32_t) {}

}  // namespace tokenyard
