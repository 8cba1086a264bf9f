/// The parameters of both kernels. One block moves rows to a peer through shared memory and
/// signals; the peer's block, which runs the same kernel, waits for the signal and sums the rows.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/wait.hpp"

namespace tokenyard::testing {

inline constexpr uint32_t kRowBytes = 4096;

struct PutSignalParams {
  WaitContext wait_context;
  const std::byte* rows;  ///< [count * kRowBytes]
  std::byte* peer_rows;   ///< [count * kRowBytes] on the peer
  uint64_t* peer_signal;
  const std::byte* my_rows;  ///< [count * kRowBytes] rows from the peer
  const uint64_t* my_signal;
  uint32_t* tickets;
  uint32_t* sums;  ///< [blocks]
  uint32_t count, epoch;
};

}  // namespace tokenyard::testing
