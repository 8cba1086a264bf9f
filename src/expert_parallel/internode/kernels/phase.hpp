/// Purposes of these kernels' waits, as errors name them.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace tokenyard::internode {

/// Numbered behind the phases inside a host (throughput/kernels/phase.hpp), whose record these
/// kernels share.
enum class Phase : uint32_t {
  counts = 32,   ///< this rank's other blocks have counted
  routes,        ///< this rank's other blocks have placed their tokens
  greeting_put,  ///< the greeting of a rail peer is posted
  greeting,      ///< a rail peer's greeting has arrived
  ready,         ///< a source's words have come, from it or its rail peer here
  known,         ///< this rank's first block knows all counts
  load,          ///< a row or slot is in shared memory
  stage,         ///< a place in a host's stage is free
  written,       ///< slots are ready to be put
  put,           ///< slots are posted
  credits,       ///< a rail peer has read slots
  flush,         ///< slots are read by the network
  slots,         ///< slots of a rail peer have arrived
  sums,          ///< partial sums of a rail peer have arrived
  read,          ///< this rank's warps have read slots
  credit_put,    ///< credits are posted
  finished,      ///< a rank of this host has ended its accesses
  retired,       ///< no wait: a CUDA graph of a world of before
  delivered,     ///< all rows of a source are in place
  judged,        ///< a rail peer's host has places for its rows, or not
};
inline constexpr uint32_t kPhases = 20;

/// Returns the role and what it waited for, in the order of Phase.
std::span<const std::string> phase_names();

}  // namespace tokenyard::internode
