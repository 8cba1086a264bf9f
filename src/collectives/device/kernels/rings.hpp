/// Collectives of many bytes on tensors anywhere: chunks through rings in the windows.
///
///     sending warps                               receiving warps of the destination
///     claim chunk j
///     wait for consumed[j % places]     <------   lap of the place that the chunk used before
///     input  ==== chunk j ====>  ring[parity][source][j % places]
///     fence; filled[j % places] = lap   ------>   claim chunk j, wait for it from every source,
///                                                 fold or copy it to the result
///
/// 1. Chunks are claimed in order from two counters of the rank, one for its senders and one for
///    its receivers, because the links serve multiprocessors very unequally.
/// 2. A `filled` word is a release of its chunk, a `consumed` word one of the loads from the ring.
///    Each carries the epoch, the call's digest and the lap, and nobody clears them: a late word of
///    an older call, or one of another call, is never the one that is awaited.
/// 3. Calls of the same parity are separated by call words (device_call_kernel.hpp), so the first
///    lap of a call waits for nothing.
/// 4. A rank that sends to itself does so without a copy: `filled` says that its senders have read
///    the chunk of their input, for whichever rank. Its receivers wait for that before they write,
///    so the result may lie where the input does.
/// 5. Senders wait for receivers of other ranks, receivers for senders of all ranks. Both work in
///    the order of chunks and are resident together, so the lowest chunk that is not done always
///    goes on. Senders and receivers are different blocks: loads of an SM queue behind its stores.
#pragma once

#include "collectives/device/kernels/device_call.hpp"
#include "device/kernel.hpp"

namespace tokenyard::device_collectives {

/// The last warp of a block publishes and compares calls; the others move data.
/// A lane has 128 registers then.
inline constexpr uint32_t kRingsThreadsMax = 512;

struct RingsParams {
  CallParams call;
  uint32_t chunk_bytes;  ///< at most those of the layout; the same on all ranks
  uint32_t senders;      ///< blocks that send; they come first
};

TOKENYARD_DECLARE_KERNEL(rings_kernel, RingsParams);

}  // namespace tokenyard::device_collectives
