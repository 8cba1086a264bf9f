/// all_to_all whose splits only the device knows.
///
/// 1. The last warp of block 0 reads how many elements this rank sends to each. It tells all ranks,
///    as in messages.hpp, 5, and beside that how much its input and its result hold.
/// 2. The last warp of each block waits for the call words of all ranks. It checks that no rank
///    sends more than its input holds or gets more than its result holds; all ranks check all, so
///    all report the same rank.
/// 3. It then describes the block's messages, as a host does for messages.hpp, in shared memory:
///    parts lie one behind the other, in the order of ranks. The block's other warps wait for that,
///    and serve the messages. Block 0 stores how many elements have come from each.
#pragma once

#include <cstdint>

#include "collectives/device/kernels/messages.hpp"

namespace tokenyard::device_collectives {

struct SplitsParams {
  CallParams call;
  const int64_t* splits;  ///< [slots] elements for each slot's rank
  int64_t* received;      ///< [slots] elements from each
  uint32_t element_bytes, chunk_bytes;
  uint64_t input_bytes, result_bytes;  ///< of the arrays
};

TOKENYARD_DECLARE_KERNEL(splits_kernel, SplitsParams);

}  // namespace tokenyard::device_collectives
