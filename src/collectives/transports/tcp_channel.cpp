#include "collectives/transports/tcp_channel.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "net/tcp_pacing.hpp"

namespace tokenyard::collectives {

namespace {

/// A held byte's address equals its position in the stream, modulo this.
constexpr size_t kAlignment = 64;
constexpr size_t kHeldBytes = kArrivedInOnePiece + kAlignment;
/// Small receives come in pairs, a header and its payload: one system call serves both.
constexpr size_t kSmallBytes = 4 << 10;

}  // namespace

void TcpChannel::AlignedDelete::operator()(std::byte* held) const {
  ::operator delete[](held, std::align_val_t(kAlignment));
}

TcpChannel::TcpChannel(uint32_t stripes, uint64_t turn_bytes)
    : turn_bytes_(turn_bytes), sockets_(stripes) {}

TcpChannel::~TcpChannel() {
  // A child process may have copies of the sockets, and then closing ours would end nothing.
  for (const FileDescriptor& socket : sockets_) {
    if (socket) (void)::shutdown(socket.native(), SHUT_RDWR);
  }
}

void TcpChannel::finish_sending() {
  sends_ = false;
  for (const FileDescriptor& socket : sockets_) {
    if (socket) (void)::shutdown(socket.native(), SHUT_WR);
  }
}

bool TcpChannel::discard_to_end() {
  std::array<std::byte, kSmallBytes> waste;
  bool end = true;
  for (FileDescriptor& socket : sockets_) {
    while (socket) {
      const net::Moved moved = net::receive_now(socket, waste);
      if (moved.over) socket.close();
      if (moved.bytes == 0) break;
    }
    end = end && !socket;
  }
  return end;
}

bool TcpChannel::is_closed_by_peer() const {
  pollfd first{.fd = sockets_.front().native(), .events = POLLRDHUP, .revents = 0};
  return sockets_.front() && ::poll(&first, 1, 0) > 0;
}

void TcpChannel::add(uint32_t stripe, FileDescriptor socket) {
  net::pace_a_long_way(socket);
  sockets_[stripe] = std::move(socket);
}

size_t TcpChannel::send_some(std::span<const std::byte> bytes) {
  size_t taken = 0;
  while (sends_ && taken < bytes.size()) {
    const FileDescriptor& socket = at_turn(sent_);
    if (!socket) break;
    const size_t piece = std::min(bytes.size() - taken, left_of_turn(sent_));
    const net::Moved moved = net::send_now(socket, bytes.subspan(taken, piece));
    taken += moved.bytes;
    sent_ += moved.bytes;
    if (moved.over) {
      sends_ = false;
      error_ = moved.error;
    }
    if (moved.bytes < piece) break;
  }
  return taken;
}

size_t TcpChannel::receive_directly(std::span<std::byte> into) {
  size_t got = 0;
  while (receives_ && got < into.size()) {
    const FileDescriptor& socket = at_turn(received_);
    if (!socket) break;
    const size_t piece = std::min(into.size() - got, left_of_turn(received_));
    const net::Moved moved = net::receive_now(socket, into.subspan(got, piece));
    got += moved.bytes;
    received_ += moved.bytes;
    if (moved.over) {
      receives_ = false;
      error_ = moved.error != 0 ? moved.error : ECONNRESET;
    }
    if (moved.bytes < piece) break;
  }
  return got;
}

size_t TcpChannel::receive_some(std::span<std::byte> into) {
  size_t got = take_held(into);
  if (got == into.size()) return got;
  if (into.size() - got < kSmallBytes) {
    read_ahead(kSmallBytes);
    return got + take_held(into.subspan(got));
  }
  return got + receive_directly(into.subspan(got));
}

std::span<const std::byte> TcpChannel::arrived(size_t wanted) {
  wanted = std::min(wanted, kArrivedInOnePiece);
  if (held_end_ - held_begin_ < wanted) read_ahead(std::max(wanted, kSmallBytes));
  return {held_.get() + held_begin_, std::min(wanted, held_end_ - held_begin_)};
}

void TcpChannel::consume(size_t bytes) {
  held_begin_ += bytes;
}

/// Reads until `wanted` bytes are held or no more have arrived.
void TcpChannel::read_ahead(size_t wanted) {
  if (!held_) held_.reset(new (std::align_val_t(kAlignment)) std::byte[kHeldBytes]);
  const size_t held = held_end_ - held_begin_;
  if (held == 0 || held_begin_ + wanted > kHeldBytes) {
    const size_t begin = (received_ - held) % kAlignment;
    if (held > 0) std::memmove(held_.get() + begin, held_.get() + held_begin_, held);
    held_begin_ = begin;
    held_end_ = begin + held;
  }
  held_end_ += receive_directly({held_.get() + held_end_, wanted - held});
}

size_t TcpChannel::take_held(std::span<std::byte> into) {
  const size_t bytes = std::min(into.size(), held_end_ - held_begin_);
  if (bytes > 0) std::memcpy(into.data(), held_.get() + held_begin_, bytes);
  held_begin_ += bytes;
  return bytes;
}

}  // namespace tokenyard::collectives
