/// Collectives of some megabytes: sixteen bytes of data are their own flag.
///
///     source                                         destination
///     block 0: call word   ---------------------->   every block compares all words
///     piece of the input ^ key   ---------------->   packet[parity][source][piece]
///                                                    polled until it is not zero; its data are
///                                                    folded or copied to the result; zeroed
///
/// 1. A packet is stored by one relaxed store and loaded by one relaxed load, so a reader that sees
///    any of it has all of it, and nothing else depends on it. Zero means empty. The key is 128
///    random bits that the ranks draw for their object, so data of any pattern travel; data equal
///    to the key, one case of 2^128, would end the call at its deadline.
/// 2. A call uses each packet at most once, and its reader empties it. Calls of the same parity are
///    separated by call words (device_call_kernel.hpp): that of the next call is a release behind
///    the emptying, and who begins the call after that has all of them. So a packet is empty when
///    it is written.
/// 3. Packets do not say of which call they are. Every block compares the words of all ranks before
///    it writes other ranks' data to a result: data of another call are never accepted. After a
///    call that has failed the object has failed for good, with whatever its packets hold.
/// 4. A thread sends a piece to every rank before it stores a result there, so the result may lie
///    where the input does.
/// 5. No block waits for a block of its own rank, and a thread sends a step of pieces before it
///    awaits the previous one. All blocks of a rank are resident together, so each goes on.
#pragma once

#include "collectives/device/kernels/device_call.hpp"
#include "device/kernel.hpp"

namespace tokenyard::device_collectives {

/// The last warp of a block publishes and compares calls; the others move data.
inline constexpr uint32_t kPacketsThreadsMax = 544;

struct PacketsParams {
  CallParams call;
  Bytes16 key;
  uint32_t pieces;          ///< of a message
  uint32_t pieces_a_block;  ///< in a block's range
  bool in_steps;            ///< a thread moves several at once: copies, and sums of floats
};

TOKENYARD_DECLARE_KERNEL(packets_kernel, PacketsParams);

}  // namespace tokenyard::device_collectives
