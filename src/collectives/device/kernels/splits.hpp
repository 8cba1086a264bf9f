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
/// 4. Parts for empty slots are left out of the input, and none come from them.
#pragma once

#include <cstdint>

#include "collectives/device/kernels/messages.hpp"

namespace tokenyard::device_collectives {

struct SplitArrays {
  const int64_t* splits = nullptr;  ///< [slots] elements for each slot's rank
  int64_t* received = nullptr;      ///< [slots] elements from each
  uint32_t slots = 0, element_bytes = 0;
  uint64_t input_bytes = 0, result_bytes = 0;  ///< of the arrays
};

struct SplitsParams {
  CallParams call;
  SplitArrays arrays;
  uint32_t chunk_bytes;
};

TOKENYARD_DECLARE_KERNEL(splits_kernel, SplitsParams);

}  // namespace tokenyard::device_collectives
