/// A channel between two processes of one host: a segment with two rings, doorbells, and
/// single-copy transfers (single_copy.hpp) for large data.
///
/// The wake-up protocol. No process sleeps through a message, and no doorbell rings for a process
/// that is awake:
///
///     sleeper                               peer
///     asleep = 1                            moves a position (writes, reads, offers or returns)
///     looks at all positions once more      asleep was 1? sets it to 0, rings the doorbell
///     sleeps until the doorbell
///
/// Invariant: either the sleeper sees the new position, or the peer sees that it sleeps. That holds
/// because all four accesses are seq_cst.
#pragma once

#include <vector>

#include "collectives/interfaces/channel.hpp"
#include "collectives/transports/datagram_mailbox.hpp"
#include "collectives/transports/segment.hpp"

namespace tokenyard::collectives {

class SharedChannel final : public Channel {
 public:
  /// Rings with `mailbox`, which must outlive this. `offers`: sent bytes may use single-copy
  /// transfers.
  SharedChannel(Segment segment, End end, const DatagramMailbox& mailbox, net::AbstractAddress peer,
                bool offers);
  ~SharedChannel() override;

  size_t send_some(std::span<const std::byte> bytes) override;
  size_t receive_some(std::span<std::byte> into) override;
  std::span<const std::byte> arrived(size_t wanted) override;
  void consume(size_t bytes) override;
  bool in_place() const override { return held_.empty() && copyable() == 0; }
  uint64_t bytes_sent() const override { return sent_; }

  /// Returns whether both ends have the segment.
  bool taken() const { return taken_ || (taken_ = header_.taken.load() != 0); }
  void set_asleep(bool asleep);
  /// Returns whether the other end has closed its channel.
  bool is_closed_by_peer() const;

 private:
  void ring_if_asleep();
  bool is_worth_single_copy(std::span<const std::byte> bytes) const;
  size_t send_by_ring(std::span<const std::byte> bytes);
  size_t copyable() const { return copy_receiver_.available(reader_.read()); }
  size_t copy_from_sender(std::span<std::byte> into);
  void hold_copied();

  Segment segment_;
  SegmentHeader& header_;
  const End end_;
  RingWriter writer_;
  RingReader reader_;
  SingleCopySender copy_sender_;
  SingleCopyReceiver copy_receiver_;
  const bool offers_;
  const std::byte* offered_from_ = nullptr;  ///< start of the bytes offered and not returned
  const std::byte* ring_rest_ = nullptr;     ///< rest of data whose beginning went through the ring
  /// Memory for single-copied bytes that are read in place.
  std::vector<std::byte> copied_;
  std::span<const std::byte> held_;
  const DatagramMailbox& mailbox_;
  const net::AbstractAddress peer_;
  uint64_t sent_ = 0;
  mutable bool taken_ = false;
};

}  // namespace tokenyard::collectives
