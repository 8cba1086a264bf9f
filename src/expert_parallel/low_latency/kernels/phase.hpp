/// Purposes of these kernels' waits, as reports name them.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace tokenyard::low_latency {

enum class Phase : uint32_t {
  left_out,          ///< no wait: the caller did not list the rank as active
  dispatch_room,     ///< a rank has drained the buffer that this call writes
  dispatch_ids,      ///< the experts of a source's tokens
  dispatch_rows,     ///< sixteen bytes of a row
  combine_room,      ///< as dispatch_room
  combine_weights,   ///< the weights of a source's token
  combine_partials,  ///< sixteen bytes of a partial sum
  rows_format,       ///< no wait: the rank sent rows in another format
  sums_format,       ///< no wait: the rank sent partial sums in another format
  put_room,          ///< a rank has read the last message that lay where this one will
  put_rows,          ///< the message with a source's rows
  put_weights,       ///< that with its weights, if its combine publishes them
  put_sums,          ///< that with a rank's partial sums
  put_end,           ///< this rank's own waits for messages have ended
};

/// Returns whether the phase is a wait of a sending part.
inline constexpr bool is_to_send(Phase phase) {
  return phase == Phase::dispatch_room || phase == Phase::combine_room ||
         phase == Phase::combine_weights || phase == Phase::put_room;
}

/// Returns "low latency dispatch: ids", ... in the order of Phase.
std::span<const std::string> phase_names();

}  // namespace tokenyard::low_latency
