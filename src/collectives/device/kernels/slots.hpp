/// Collectives of few bytes: the data is the flag.
///
///     source, block b                                destination
///     block 0: call word   ---------------------->   one warp of block 0 compares all words
///     pieces of its input  ---------------------->   slot[parity][source][piece]
///                                                    polls the slots of its own pieces, folds or
///                                                    copies them to the result
///
/// 1. A slot is eight bytes of data, the lower half of the epoch and the call's digest, which
///    contains the upper half: sixteen bytes, stored by one relaxed store and loaded by one relaxed
///    load. A reader that sees the stamp of its call has the data; nothing else depends on it. No
///    slot is cleared: a late store of an older call, or one of a rank that makes another call,
///    never bears the stamp that is awaited.
/// 2. A call uses each slot at most once, and calls of the same parity are separated by call words
///    (device_call_kernel.hpp). So no slot is overwritten before it is read.
/// 3. Block b of a rank sends and receives the b-th range of pieces of each message. Its threads
///    send all of them before any of them stores a result, so the result may lie where the input
///    does.
/// 4. No block waits for a block of its own rank, and blocks send before they receive.
#pragma once

#include "collectives/device/kernels/device_call.hpp"
#include "device/kernel.hpp"

namespace tokenyard::device_collectives {

/// The last warp of a block publishes and compares calls; the others move data.
inline constexpr uint32_t kSlotsThreadsMax = 544;

struct SlotsParams {
  CallParams call;
  uint32_t pieces;          ///< of a message
  uint32_t pieces_a_block;  ///< in a block's range
};

TOKENYARD_DECLARE_KERNEL(slots_kernel, SlotsParams);

}  // namespace tokenyard::device_collectives
