/// A host that waits for a stream, and not for ever.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "device/accelerator.hpp"

namespace tokenyard {

/// Until all that was enqueued on `stream` has ended. Throws PeerTimeout, with `rank` (the
/// caller's) and `phase`, once `timeout` has passed.
void await_stream(Accelerator& accelerator, uint32_t rank, Stream stream,
                  std::chrono::nanoseconds timeout, const std::string& phase);

}  // namespace tokenyard
