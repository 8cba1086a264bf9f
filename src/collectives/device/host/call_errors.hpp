/// The errors of calls that have failed on the device.
#pragma once

#include "collectives/device/host/members.hpp"
#include "fabric/abort_flag.hpp"

namespace tokenyard::device_collectives {

/// Throws the error of the first call that failed, as far as the host can see it.
void check_calls(const ErrorRecord& errors, const Members& members);

}  // namespace tokenyard::device_collectives
