#include "collectives/transports/shared_channel.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "tokenyard/error.hpp"

namespace tokenyard::collectives {

namespace {

/// Both ends copy at the same time, one piece apart; a piece should stay in the inner cache
/// meanwhile.
constexpr size_t kPieceBytes = 32 << 10;
/// Longer data come from memory as a rule: they are chunks of large arrays.
constexpr size_t kCachedBytes = 64 << 10;

/// Size range of single-copy transfers. A transfer costs two round trips between the processes and
/// saves one copy of two. Data longer than the maximum exceed the caches, where the ring is better:
/// the system copies into the caches.
constexpr size_t kSingleCopyMin = 256 << 10;
constexpr size_t kSingleCopyMax = 8 << 20;

}  // namespace

SharedChannel::SharedChannel(Segment segment, End end, const DatagramMailbox& mailbox,
                             net::AbstractAddress peer, bool offers)
    : segment_(std::move(segment)),
      header_(segment_.header()),
      end_(end),
      writer_(segment_.ring(end)),
      reader_(segment_.ring(other(end))),
      copy_sender_(header_.single_copies[static_cast<size_t>(end)]),
      copy_receiver_(header_.single_copies[static_cast<size_t>(other(end))]),
      offers_(offers),
      mailbox_(mailbox),
      peer_(peer) {
  if (end == End::acceptor) {
    header_.taken.store(1);
    ring_if_asleep();
  }
}

SharedChannel::~SharedChannel() {
  header_.closed[static_cast<size_t>(end_)].word.store(1);
}

bool SharedChannel::is_closed_by_peer() const {
  return header_.closed[static_cast<size_t>(other(end_))].word.load() != 0;
}

size_t SharedChannel::send_some(std::span<const std::byte> bytes) {
  if (!taken()) return 0;
  size_t sent = 0;
  if (copy_sender_.is_offering()) {
    if (bytes.data() != offered_from_)
      throw InternalError("offered memory was sent from another address");
    sent = copy_sender_.take_back();
    sent_ += sent;
    offered_from_ += sent;
    if (copy_sender_.is_offering() || sent == bytes.size()) return sent;
  } else if (is_worth_single_copy(bytes)) {
    copy_sender_.offer(bytes.first(bytes.size() - bytes.size() % kSingleCopyGranule),
                       writer_.written());
    offered_from_ = bytes.data();
    ring_if_asleep();
    return 0;
  }
  return sent + send_by_ring(bytes.subspan(sent));
}

bool SharedChannel::is_worth_single_copy(std::span<const std::byte> bytes) const {
  return offers_ && bytes.size() >= kSingleCopyMin && bytes.size() <= kSingleCopyMax &&
         bytes.data() != ring_rest_ && copy_sender_.may_offer();
}

size_t SharedChannel::send_by_ring(std::span<const std::byte> bytes) {
  const bool from_memory = bytes.size() > kCachedBytes;
  size_t sent = 0;
  while (sent < bytes.size()) {
    const size_t piece = std::min(kPieceBytes, bytes.size() - sent);
    const size_t written = writer_.write_some(bytes.subspan(sent, piece), from_memory);
    if (written == 0) break;
    ring_if_asleep();
    sent += written;
  }
  sent_ += sent;
  ring_rest_ = sent < bytes.size() ? bytes.data() + sent : nullptr;
  return sent;
}

size_t SharedChannel::receive_some(std::span<std::byte> into) {
  size_t received = 0;
  while (received < into.size()) {
    if (held_.empty() && copyable() > 0) {
      const size_t copied = copy_from_sender(into.subspan(received));
      if (copied == 0) break;
      received += copied;
      continue;
    }
    const auto piece = arrived(std::min(kPieceBytes, into.size() - received));
    if (piece.empty()) break;
    std::memcpy(into.data() + received, piece.data(), piece.size());
    consume(piece.size());
    received += piece.size();
  }
  return received;
}

std::span<const std::byte> SharedChannel::arrived(size_t wanted) {
  // Not the whole ring at once, so that the writer has room while this end works on a piece.
  wanted = std::min(wanted, kArrivedInOnePiece);
  if (held_.empty() && copyable() > 0) hold_copied();
  if (!held_.empty()) return held_.first(std::min(wanted, held_.size()));
  return reader_.arrived(wanted);
}

void SharedChannel::consume(size_t bytes) {
  if (!held_.empty()) {
    held_ = held_.subspan(bytes);
    return;
  }
  reader_.consume(bytes);
  ring_if_asleep();
}

size_t SharedChannel::copy_from_sender(std::span<std::byte> into) {
  const size_t copied =
      copy_receiver_.copy_from_sender(into.first(std::min(into.size(), copyable())));
  if (copyable() == 0) ring_if_asleep();  // the sender needs no wake-up for a part
  return copied;
}

void SharedChannel::hold_copied() {
  if (copied_.empty()) copied_.resize(kArrivedInOnePiece + 2 * kSingleCopyGranule);
  const auto begin = reinterpret_cast<uintptr_t>(copied_.data());
  const size_t before = (reader_.read() - begin) % kSingleCopyGranule;  // aligned as in the stream
  const std::span<std::byte> place = std::span(copied_).subspan(before, kArrivedInOnePiece);
  held_ = place.first(copy_from_sender(place));
}

void SharedChannel::set_asleep(bool asleep) {
  header_.asleep[static_cast<size_t>(end_)].word.store(asleep ? 1 : 0);
}

void SharedChannel::ring_if_asleep() {
  std::atomic<uint32_t>& asleep = header_.asleep[static_cast<size_t>(other(end_))].word;
  if (asleep.load() != 0 && asleep.exchange(0) != 0) mailbox_.ring_doorbell(peer_);
}

}  // namespace tokenyard::collectives
