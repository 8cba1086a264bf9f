/// A host-side wait for a stream, with a timeout.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "device/accelerator.hpp"

namespace tokenyard {

/// Waits until all work enqueued on `stream` has ended. Throws PeerTimeout, with `rank` (the
/// caller's) and `phase`, once `timeout` has passed.
void await_stream(Accelerator& accelerator, uint32_t rank, Stream stream,
                  std::chrono::nanoseconds timeout, const std::string& phase);

}  // namespace tokenyard
