#pragma once

#include "device/host/machine.hpp"
#include "device/part.hpp"

namespace tokenyard {

TOKENYARD_DEVICE void begin_part(uint32_t part) {
  host_body::machine().begin_part(part);
}

}  // namespace tokenyard
