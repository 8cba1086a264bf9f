/// Messages to and from ranks of other hosts, beside those inside the host (messages.hpp), which
/// may wait for one another's ranks: so one launch serves all.
///
///     sender's block                                 a block of the receiver
///     wait until a slot of the ring is free  <------   credit of an earlier slot
///     data -> stage == put and signal ==> slot         wait for the signal; copy the chunk
///
/// 1. Every rank has a ring for each rank of another host, whose slots begin with a header: the
///    number of the chunk, the message's tag and type, and its size. The receiver refuses a message
///    that is not the one that it awaits.
/// 2. All messages with a rank belong to one block, whose first thread alone uses the queue to that
///    rank. It looks for a message that can go on, whichever it is: no message waits for another
///    one of its launch, but for those before it to, or from, the same rank. Then the block's warps
///    copy the chunk together.
/// 3. Counts of rings outlive launches, and belong to no epoch. A launch ends once the network has
///    read its stages.
#pragma once

#include "collectives/device/kernels/between_hosts.hpp"
#include "collectives/device/kernels/messages.hpp"

namespace tokenyard::device_collectives {

/// The part of a rank's window that the network reaches for messages.
struct MessageWindow {
  uint32_t links_max;
  uint32_t capacity;    ///< slots of a ring
  uint32_t data_bytes;  ///< of a slot, behind its header; a multiple of 16

  static constexpr uint32_t kHeaderBytes = sizeof(Bytes16);

  TOKENYARD_HOST_DEVICE uint32_t slot_bytes() const { return kHeaderBytes + data_bytes; }
  // uint64_t words that only signals of the link's other end write.
  TOKENYARD_HOST_DEVICE size_t arrived(uint32_t link) const {
    return size_t{link} * 2 * sizeof(uint64_t);
  }
  TOKENYARD_HOST_DEVICE size_t credited(uint32_t link) const {
    return arrived(link) + sizeof(uint64_t);
  }
  TOKENYARD_HOST_DEVICE size_t words_bytes() const { return arrived(links_max); }
  TOKENYARD_HOST_DEVICE size_t ring(uint32_t link) const {
    return (words_bytes() + 127) / 128 * 128 +
           size_t{link} * (capacity + kLinkRounds) * slot_bytes();
  }
  /// Returns where chunks lie until the network has read them: kLinkRounds slots.
  TOKENYARD_HOST_DEVICE size_t stage(uint32_t link) const {
    return ring(link) + size_t{capacity} * slot_bytes();
  }
  TOKENYARD_HOST_DEVICE size_t bytes() const { return ring(links_max); }
};

struct MessagesBetweenParams {
  MessagesParams all;    ///< those inside the host come first: `count`
  uint32_t far_count;    ///< of the others behind them, sorted by link, then direction; `first` is
                         ///< the number of the link
  uint32_t near_blocks;  ///< blocks that serve messages inside the host; they come first
  MessageWindow far;
  std::byte* far_window;  ///< this rank's
  MemoryKey key;          ///< of that
  const HostLink* links;
  LinkCounts* counts;  ///< by link
  NetworkQueues queues;
  uint32_t queue;  ///< at every peer
};
static_assert(sizeof(MessagesBetweenParams) <= 4096, "Parameters of a kernel have so much room.");

TOKENYARD_DECLARE_KERNEL(messages_between_hosts_kernel, MessagesBetweenParams);

}  // namespace tokenyard::device_collectives
