#pragma once

#include "device/doorbell.hpp"

namespace tokenyard {

TOKENYARD_DEVICE void ring_doorbell(NetworkDoorbell&) {}

}  // namespace tokenyard
