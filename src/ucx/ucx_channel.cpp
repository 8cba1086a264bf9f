#include "ucx/ucx_channel.hpp"

#include <sys/random.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "base/os_failure.hpp"

namespace tokenyard::ucx {

namespace {

constexpr size_t window = UcxInterconnect::window_bytes;
/// A held byte's address equals its position in the stream, modulo this.
constexpr size_t alignment = 64;
static_assert(window % alignment == 0);

uint64_t draw_number() {
  uint64_t number = 0;
  if (getrandom(&number, sizeof number, 0) != sizeof number) os_failed("getrandom");
  return number;
}

}  // namespace

void UcxChannel::AlignedDelete::operator()(std::byte* held) const {
  ::operator delete[](held, std::align_val_t(alignment));
}

UcxChannel::UcxChannel(UcxInterconnect& network)
    : network_(network),
      number_(draw_number()),
      held_(new(std::align_val_t(alignment)) std::byte[window + collectives::kArrivedInOnePiece]) {
  network_.listen(*this);
}

UcxChannel::~UcxChannel() {
  network_.stop_listening(*this);
}

void UcxChannel::connect(std::span<const std::byte> address, uint64_t number) {
  others_number_ = number;
  endpoint_ = &network_.endpoint(address);
}

size_t UcxChannel::send_some(std::span<const std::byte> bytes) {
  size_t taken = 0;
  while (endpoint_ != nullptr && !endpoint_->failed && taken < bytes.size()) {
    const size_t room = window - (sent_ - others_consumed_);
    const size_t piece = std::min({UcxInterconnect::piece_bytes, room, bytes.size() - taken});
    UcxInterconnect::Outgoing* const message = piece > 0 ? network_.take_outgoing() : nullptr;
    if (message == nullptr) break;
    message->header[0] = others_number_;
    message->header[1] = sent_;
    std::memcpy(message->bytes, bytes.data() + taken, piece);
    network_.send(*endpoint_, UcxInterconnect::Kind::bytes, *message, piece);
    sent_ += piece;
    taken += piece;
  }
  return taken;
}

size_t UcxChannel::receive_some(std::span<std::byte> into) {
  size_t received = 0;
  while (received < into.size()) {
    const std::span<const std::byte> piece = arrived(into.size() - received);
    if (piece.empty()) break;
    std::memcpy(into.data() + received, piece.data(), piece.size());
    consume(piece.size());
    received += piece.size();
  }
  return received;
}

std::span<const std::byte> UcxChannel::arrived(size_t wanted) {
  // Repeats an announcement of room that failed for lack of a free message.
  if (consumed_ - consumed_published_ >= window / 4) publish_room();
  const size_t bytes = std::min({wanted, arrived_ - consumed_, collectives::kArrivedInOnePiece});
  return {held_.get() + consumed_ % window, bytes};
}

void UcxChannel::consume(size_t bytes) {
  consumed_ += bytes;
  if (consumed_ - consumed_published_ >= window / 4) publish_room();
}

void UcxChannel::publish_room() {
  if (endpoint_ == nullptr || endpoint_->failed) return;
  UcxInterconnect::Outgoing* const message = network_.take_outgoing();
  if (message == nullptr) return;
  message->header[0] = others_number_;
  message->header[1] = consumed_published_ = consumed_;
  network_.send(*endpoint_, UcxInterconnect::Kind::room, *message, 0);
}

void UcxChannel::take_room(uint64_t consumed) {
  if (consumed <= sent_) others_consumed_ = std::max(others_consumed_, consumed);
}

void UcxChannel::take_bytes(uint64_t position, std::span<const std::byte> bytes) {
  const uint64_t end = position + bytes.size();
  if (position < arrived_ || end < position || end > consumed_ + window) return;
  store(position, bytes);
  if (position > arrived_) {
    ahead_[position] = end;
    return;
  }
  arrived_ = end;
  for (auto next = ahead_.begin(); next != ahead_.end() && next->first <= arrived_;) {
    arrived_ = std::max(arrived_, next->second);
    next = ahead_.erase(next);
  }
}

void UcxChannel::store(uint64_t position, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const size_t at = position % window;
    const size_t piece = std::min(bytes.size(), window - at);
    std::memcpy(held_.get() + at, bytes.data(), piece);
    if (at < collectives::kArrivedInOnePiece) {
      const size_t twice = std::min(piece, collectives::kArrivedInOnePiece - at);
      std::memcpy(held_.get() + window + at, bytes.data(), twice);
    }
    position += piece;
    bytes = bytes.subspan(piece);
  }
}

}  // namespace tokenyard::ucx
