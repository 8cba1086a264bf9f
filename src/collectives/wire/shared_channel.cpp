#include "collectives/wire/shared_channel.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace tokenyard::collectives {

namespace {

/// The two ends copy at the same time, a piece apart; it should lie in the inner cache until then.
constexpr size_t kPieceBytes = 32 << 10;
/// What is longer comes from memory, as a rule: chunks of large arrays.
constexpr size_t kCachedBytes = 64 << 10;

}  // namespace

SharedChannel::SharedChannel(Segment segment, End end, const Letterbox& letterbox,
                             LetterboxAddress peer)
    : segment_(std::move(segment)),
      header_(segment_.header()),
      end_(end),
      writer_(segment_.ring(end)),
      reader_(segment_.ring(other(end))),
      letterbox_(letterbox),
      peer_(peer) {
  if (end == End::taker) {
    header_.taken.store(1);
    ring_if_asleep();
  }
}

size_t SharedChannel::send_some(std::span<const std::byte> bytes) {
  if (!taken()) return 0;
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
  return sent;
}

size_t SharedChannel::receive_some(std::span<std::byte> into) {
  size_t received = 0;
  while (received < into.size()) {
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
  return reader_.arrived(std::min(wanted, kArrivedInOnePiece));
}

void SharedChannel::consume(size_t bytes) {
  reader_.consume(bytes);
  ring_if_asleep();
}

void SharedChannel::set_asleep(bool asleep) {
  header_.asleep[static_cast<size_t>(end_)].word.store(asleep ? 1 : 0);
}

void SharedChannel::ring_if_asleep() {
  std::atomic<uint32_t>& asleep = header_.asleep[static_cast<size_t>(other(end_))].word;
  if (asleep.load() != 0 && asleep.exchange(0) != 0) letterbox_.ring(peer_);
}

}  // namespace tokenyard::collectives
