/// A channel between two processes of one host: a segment of two rings, bells, and loans
/// (single_copy.hpp) of what is large.
///
/// How nobody sleeps through a message, and nobody pays for a bell that wakes no one:
///
///     sleeper                               peer
///     asleep = 1                            moves a position (writes, reads and makes room, lends)
///     looks at all positions once more      asleep was 1? sets it to 0, rings the bell
///     sleeps until the bell
///
/// All four are seq_cst: either the sleeper sees the position, or the peer sees that it sleeps.
#pragma once

#include <vector>

#include "collectives/interfaces/channel.hpp"
#include "collectives/transports/datagram_mailbox.hpp"
#include "collectives/transports/segment.hpp"

namespace tokenyard::collectives {

class SharedChannel final : public Channel {
 public:
  /// Rings with `mailbox`, which must outlive this. `offers`: what is sent may be lent.
  SharedChannel(Segment segment, End end, const DatagramMailbox& mailbox, net::AbstractAddress peer,
                bool offers);
  ~SharedChannel() override;

  size_t send_some(std::span<const std::byte> bytes) override;
  size_t receive_some(std::span<std::byte> into) override;
  std::span<const std::byte> arrived(size_t wanted) override;
  void consume(size_t bytes) override;
  bool in_place() const override { return held_.empty() && copyable() == 0; }
  uint64_t bytes_sent() const override { return sent_; }

  /// Whether both ends have the segment.
  bool taken() const { return taken_ || (taken_ = header_.taken.load() != 0); }
  void set_asleep(bool asleep);
  /// Whether the other end has closed its channel.
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
  const std::byte* lent_from_ = nullptr;     ///< what is lent and not back begins here
  const std::byte* goes_on_from_ = nullptr;  ///< the rest of something that has begun by the ring
  /// Borrowed to be read in place.
  std::vector<std::byte> shelf_;
  std::span<const std::byte> held_;
  const DatagramMailbox& mailbox_;
  const net::AbstractAddress peer_;
  uint64_t sent_ = 0;
  mutable bool taken_ = false;
};

}  // namespace tokenyard::collectives
