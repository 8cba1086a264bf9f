/// Collectives on tensors of the arena: each byte crosses a link once, from tensor to tensor.
///
///     rank s                                            rank d
///     where its tensors lie      ------ tensors ---->   every warp waits for all ranks' words
///     its input        ===== chunks it claims =====>    result of d
///     fence; its block has moved all   --- done ---->   waits for all blocks of all ranks
///
/// 1. A rank pushes its messages into the results of their receivers. A reduction divides the
///    elements among ranks: each pulls its share of all inputs, folds it in the order of ranks, and
///    stores it in all results.
/// 2. A `tensors` word is a release of the stream before the call, so a peer that acquires it may
///    write the result. A `done` word is a release of what all warps of a block have read and
///    stored. A kernel ends only after all ranks' `done` words, so the stream after the call may
///    read the result and write the input. A block whose waits have failed stores none.
/// 3. Words carry the epoch and the call's digest, and nobody clears them.
/// 4. A result may lie where the input does, but for all_to_all: the bytes that a rank writes are
///    read by nobody else, or were read by the same lane before.
/// 5. Blocks wait for blocks of other ranks, so all are resident.
/// 6. Data carry no epoch: after a failed call, a peer that is late may still write into its
///    tensors, so their memory is not used again within this world.
#pragma once

#include "collectives/device/kernels/device_call.hpp"
#include "device/kernel.hpp"

namespace tokenyard::device_collectives {

/// The last warp of a block publishes and compares calls; the others move data.
/// A lane has 128 registers then.
inline constexpr uint32_t kDirectThreadsMax = 512;

struct DirectParams {
  CallParams call;
  uint32_t chunk_bytes;
};

TOKENYARD_DECLARE_KERNEL(direct_kernel, DirectParams);

}  // namespace tokenyard::device_collectives
