/// Purposes of these kernels' waits, as errors name them.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace tokenyard::device_collectives {

enum class WaitPhase : uint32_t {
  call,      ///< a rank has begun this call
  data,      ///< a piece of a rank's data
  place,     ///< a rank has consumed the chunk that was in a place before
  chunk,     ///< a chunk of a rank's data
  what,      ///< no wait: a rank makes another call than rank 0
  size,      ///< no wait: a rank makes a call of another size or factor than rank 0
  tensors,   ///< where a rank's tensors lie
  done,      ///< a rank's block has moved all it moves
  message,   ///< no wait: a rank sends another message than the one awaited
  counts,    ///< no wait: a rank sends another number of bytes than its peer expects
  splits,    ///< no wait: a rank's splits are more than its input holds
  capacity,  ///< no wait: a rank is sent more than its result holds
  // Between hosts:
  greeting_put,  ///< a rail peer's greeting is posted
  greeting,      ///< a rail peer has begun this call
  credits,       ///< a rail peer has read chunks
  stage,         ///< the network has read what was sent to a rail peer
  put,           ///< chunks are posted
  link_chunk,    ///< a chunk of a rail peer
};

/// Returns "device collective: call", ... in the order of WaitPhase.
std::span<const std::string> phase_names();

}  // namespace tokenyard::device_collectives
