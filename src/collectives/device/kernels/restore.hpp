/// Restores an array that failed calls may have written over. Involves no other rank.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/kernel.hpp"

namespace tokenyard::device_collectives {

inline constexpr uint32_t kRestoreThreadsMax = 512;

struct RestoreParams {
  const uint32_t* failed;  ///< of a WaitContext: a Failure
  const std::byte* kept;   ///< its bytes before the call; at a multiple of 16
  std::byte* tensor;
  uint64_t bytes;
};

TOKENYARD_DECLARE_KERNEL(restore_kernel, RestoreParams);

}  // namespace tokenyard::device_collectives
