/// Makes the error of a request that a network refused.
#pragma once

#include <string>

#include "device/network.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard {

NetworkFault network_fault(const NetworkFaultDetail& detail, uint32_t peer,
                           const std::string& phase, uint64_t expected, uint64_t seen);

}  // namespace tokenyard
