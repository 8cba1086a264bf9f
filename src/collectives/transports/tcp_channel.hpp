/// A channel over TCP connections that take turns: bytes [k T, (k+1) T) of the stream travel on
/// stripe k mod S. Both ends know the position, so it is not sent. Bytes of the current stripe are
/// received straight into the caller's memory, while the other sockets' buffers fill.
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
  /// Returns whether so much has moved that the other stripes will be needed soon.
  bool is_busy() const { return sent_ + received_ > turn_bytes_ / 4; }
  /// Ends sending; bytes sent before still arrive.
  void finish_sending();
  /// Discards arriving bytes. Returns true once no more can arrive.
  bool discard_to_end();
  /// Returns whether the other end has ended sending; its last bytes may not have been received.
  bool is_closed_by_peer() const;
  /// Returns the error that stopped the channel; 0: none.
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
  uint64_t received_ = 0;  ///< by the sockets

  /// Bytes read but not consumed: [begin, end).
  struct AlignedDelete {
    void operator()(std::byte* held) const;
  };
  std::unique_ptr<std::byte[], AlignedDelete> held_;
  size_t held_begin_ = 0, held_end_ = 0;

  /// A broken stripe leaves a hole in the stream, so the others stop too. The two directions fail
  /// separately: an error in sending says nothing about received bytes.
  bool sends_ = true, receives_ = true;
  int error_ = 0;
};

}  // namespace tokenyard::collectives
