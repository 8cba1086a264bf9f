/// A channel over TCP connections that take turns: bytes [k T, (k+1) T) of the stream travel on
/// stripe k mod S. Both ends know the position, so no byte tells it; what arrives on the one whose
/// turn it is goes straight to where the caller wants it, while the others fill their buffers.
#pragma once

#include <memory>
#include <vector>

#include "collectives/interfaces/channel.hpp"
#include "net/tcp_socket.hpp"

namespace tokenyard::collectives {

class TcpChannel final : public Channel {
 public:
  TcpChannel(uint32_t stripes, uint64_t turn_bytes);
  ~TcpChannel() override;

  size_t send_some(std::span<const std::byte> bytes) override;
  size_t receive_some(std::span<std::byte> into) override;
  std::span<const std::byte> arrived(size_t wanted) override;
  void consume(size_t bytes) override;
  bool in_place() const override { return false; }
  uint64_t bytes_sent() const override { return sent_; }

  uint32_t stripes() const { return static_cast<uint32_t>(sockets_.size()); }
  uint64_t turn_bytes() const { return turn_bytes_; }
  bool has(uint32_t stripe) const { return static_cast<bool>(sockets_[stripe]); }
  void add(uint32_t stripe, FileDescriptor socket);
  /// Whether so much has moved that more than the first stripe will be wanted soon.
  bool is_busy() const { return sent_ + received_ > turn_bytes_ / 4; }
  /// Sends nothing more; what has been sent still arrives.
  void finish_sending();
  /// Throws away what arrives. True once nothing can arrive any more.
  bool discard_to_end();
  /// Whether the other end sends nothing more, though what it has sent may not have been received.
  bool is_closed_by_peer() const;
  /// Why something does not move any more; 0 if all is well.
  int error() const { return error_; }

 private:
  const FileDescriptor& at_turn(uint64_t position) const {
    return sockets_[position / turn_bytes_ % sockets_.size()];
  }
  size_t left_of_turn(uint64_t position) const { return turn_bytes_ - position % turn_bytes_; }
  size_t receive_directly(std::span<std::byte> into);
  void read_ahead(size_t wanted);
  size_t take_held(std::span<std::byte> into);

  const uint64_t turn_bytes_;
  std::vector<FileDescriptor> sockets_;
  uint64_t sent_ = 0;
  uint64_t received_ = 0;  ///< from the sockets

  /// Read, but not consumed: bytes [begin, end).
  struct AlignedDelete {
    void operator()(std::byte* held) const;
  };
  std::unique_ptr<std::byte[], AlignedDelete> held_;
  size_t held_begin_ = 0, held_end_ = 0;

  /// One broken stripe is a hole in the stream, so nothing moves on the others either. But what
  /// cannot be sent any more says nothing of what has been received.
  bool sends_ = true, receives_ = true;
  int error_ = 0;
};

}  // namespace tokenyard::collectives
