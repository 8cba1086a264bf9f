/// Messages between pairs of ranks: all_to_all with a size per pair, and send and receive.
///
///     sender's warp                                  a warp of the receiver
///     wait for consumed[n - places]     <------   chunk n - places has been read
///     data  ==== chunk n ====>  place n % places of the channel from this sender
///     fence; filled = n                 ------>   copy the chunk; fence; consumed = n
///
/// 1. Every ordered pair of ranks has a channel: a ring in the receiver's window whose chunks are
///    numbered. In a collective call numbers begin at 0, the rings are those of `rings`, and words
///    bear the call's epoch and digest. Otherwise each rank counts the chunks of each channel for
///    ever, in its own memory, and words bear those numbers; such messages wait for nobody but
///    their peer, and belong to no epoch.
/// 2. A `filled` word is a release of its chunk, a `consumed` word one of the loads from the ring.
/// 3. A message is served by some of the warps, or a warp serves several messages. Such a warp
/// waits
///    for whichever can go on, so no message waits for another one of its launch: messages of a
///    launch may be received in any order.
/// 4. Words of messages also bear type, tag and size. The receiver refuses a message that is not
/// the
///    one that it awaits. Messages between two ranks are received in the order in which they are
///    sent.
/// 5. In a collective call, every rank tells all ranks how much it sends to and expects from each.
///    These counts are released by the call word, and all ranks compare those of all pairs, so all
///    report the same difference.
/// 6. Each block has counters of its own, and advances those of all blocks whose index equals its
///    own modulo the number of blocks, as with epochs.
#pragma once

#include <algorithm>
#include <cstdint>

#include "collectives/device/kernels/device_call.hpp"
#include "device/kernel.hpp"

namespace tokenyard::device_collectives {

/// The last warp of a block keeps counters, and publishes and compares calls; the others move data.
inline constexpr uint32_t kMessagesThreadsMax = 512;
/// Messages of a launch, and of a warp.
inline constexpr uint32_t kMessagesMax = 48, kMessagesOfWarp = 16;

/// Returns how many words there are of MessagesParams::channels. The last one is not zero once
/// ranks have gone on: messages of a graph that was captured before fail.
TOKENYARD_HOST_DEVICE uint64_t channel_words(uint32_t ranks) {
  return uint64_t{kBlocksMax} * ranks * kRoles + 1;
}

/// A message as one of its two ranks knows it.
struct Message {
  std::byte* data;  ///< only read by a sender
  uint64_t bytes;
  uint64_t first;  ///< chunks of earlier messages of this launch in the same channel
  uint32_t peer;
  uint32_t label;  ///< its tag and type
  uint32_t chunk_bytes;
  bool receives;

  /// Returns the number of chunks. Only in a collective call, whose sizes are compared, may a
  /// message have none.
  TOKENYARD_HOST_DEVICE uint64_t chunks(bool collective) const {
    return std::max<uint64_t>((bytes + chunk_bytes - 1) / chunk_bytes, collective ? 0 : 1);
  }
  /// Returns what words say of the message beside its chunk's number.
  TOKENYARD_HOST_DEVICE uint64_t description() const {
    return uint64_t{label} << 32 | static_cast<uint32_t>(bytes);
  }
};

struct MessagesParams {
  CallParams call;
  bool collective;
  uint64_t* channels;  ///< [kBlocksMax][ranks][kRoles] chunks of earlier launches, and one word
  uint64_t own_bytes;  ///< of a collective call: what this rank keeps for itself
  const std::byte* own_input;
  std::byte* own_result;
  uint32_t count;
  Message messages[kMessagesMax];
};

TOKENYARD_DECLARE_KERNEL(messages_kernel, MessagesParams);

}  // namespace tokenyard::device_collectives
