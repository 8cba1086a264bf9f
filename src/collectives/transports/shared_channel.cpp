#include "collectives/transports/shared_channel.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "tokenyard/error.hpp"

namespace tokenyard::collectives {

namespace {

/// The two ends copy at the same time, a piece apart; it should lie in the inner cache until then.
constexpr size_t kPieceBytes = 32 << 10;
/// What is longer comes from memory, as a rule: chunks of large arrays.
constexpr size_t kCachedBytes = 64 << 10;

/// A loan is there and back twice between two processes, and one copy instead of two. What is
/// longer than this goes past the caches, which the ring does better: the system copies into them.
constexpr size_t kLoanMin = 256 << 10;
constexpr size_t kLoanMax = 8 << 20;

}  // namespace

SharedChannel::SharedChannel(Segment segment, End end, const Letterbox& letterbox,
                             net::AbstractAddress peer, bool lends)
    : segment_(std::move(segment)),
      header_(segment_.header()),
      end_(end),
      writer_(segment_.ring(end)),
      reader_(segment_.ring(other(end))),
      lender_(header_.loans[static_cast<size_t>(end)]),
      borrower_(header_.loans[static_cast<size_t>(other(end))]),
      lends_(lends),
      letterbox_(letterbox),
      peer_(peer) {
  if (end == End::taker) {
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
  if (lender_.is_lending()) {
    if (bytes.data() != lent_from_) throw InternalError("what was lent has moved");
    sent = lender_.take_back();
    sent_ += sent;
    lent_from_ += sent;
    if (lender_.is_lending() || sent == bytes.size()) return sent;
  } else if (is_worth_lending(bytes)) {
    lender_.lend(bytes.first(bytes.size() - bytes.size() % kLoanGranule), writer_.written());
    lent_from_ = bytes.data();
    ring_if_asleep();
    return 0;
  }
  return sent + send_by_ring(bytes.subspan(sent));
}

bool SharedChannel::is_worth_lending(std::span<const std::byte> bytes) const {
  return lends_ && bytes.size() >= kLoanMin && bytes.size() <= kLoanMax &&
         bytes.data() != goes_on_from_ && lender_.may_lend();
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
  goes_on_from_ = sent < bytes.size() ? bytes.data() + sent : nullptr;
  return sent;
}

size_t SharedChannel::receive_some(std::span<std::byte> into) {
  size_t received = 0;
  while (received < into.size()) {
    if (held_.empty() && borrowable() > 0) {
      const size_t borrowed = borrow(into.subspan(received));
      if (borrowed == 0) break;
      received += borrowed;
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
  // Not the whole ring at once: the writer should have room while this end works on a piece.
  wanted = std::min(wanted, kArrivedInOnePiece);
  if (held_.empty() && borrowable() > 0) hold_borrowed();
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

size_t SharedChannel::borrow(std::span<std::byte> into) {
  const size_t borrowed = borrower_.borrow(into.first(std::min(into.size(), borrowable())));
  if (borrowable() == 0) ring_if_asleep();  // Of a part of it the lender has no use.
  return borrowed;
}

void SharedChannel::hold_borrowed() {
  if (shelf_.empty()) shelf_.resize(kArrivedInOnePiece + 2 * kLoanGranule);
  const auto begin = reinterpret_cast<uintptr_t>(shelf_.data());
  const size_t before = (reader_.read() - begin) % kLoanGranule;  // Aligned as in the stream.
  const std::span<std::byte> place = std::span(shelf_).subspan(before, kArrivedInOnePiece);
  held_ = place.first(borrow(place));
}

void SharedChannel::set_asleep(bool asleep) {
  header_.asleep[static_cast<size_t>(end_)].word.store(asleep ? 1 : 0);
}

void SharedChannel::ring_if_asleep() {
  std::atomic<uint32_t>& asleep = header_.asleep[static_cast<size_t>(other(end_))].word;
  if (asleep.load() != 0 && asleep.exchange(0) != 0) letterbox_.ring(peer_);
}

}  // namespace tokenyard::collectives
