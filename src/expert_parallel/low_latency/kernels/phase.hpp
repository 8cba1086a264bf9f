/// What a wait of these kernels is for, as reports name it.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace tokenyard::low_latency {

enum class Phase : uint32_t {
  left_out,          ///< no wait: the caller did not count the rank as active
  dispatch_room,     ///< a rank has drained the buffer that is to be written
  dispatch_ids,      ///< which experts a source's tokens want
  dispatch_rows,     ///< sixteen bytes of a row
  combine_room,      ///< as dispatch_room
  combine_weights,   ///< the weights of a source's token
  combine_partials,  ///< sixteen bytes of a row of sums
  rows_format,       ///< no wait: the rank's rows came in another format
  sums_format,       ///< no wait: its rows of sums did
};

/// Whether what is awaited lets this rank send, and not receive.
inline constexpr bool is_to_send(Phase phase) {
  return phase == Phase::dispatch_room || phase == Phase::combine_room ||
         phase == Phase::combine_weights;
}

/// "low latency dispatch: ids", ... in the order of Phase.
std::span<const std::string> phase_names();

}  // namespace tokenyard::low_latency
