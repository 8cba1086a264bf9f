/// A channel whose bytes travel by another network than the connection over which its ends met.
///
///     both    over TCP: send my address and my number there
///     both    once the other's have come: connect; all further bytes use the other network
///
/// The TCP connection is authenticated, so only the two ends know the numbers. It stays open, idle.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "collectives/transports/interconnect.hpp"
#include "collectives/transports/tcp_channel.hpp"

namespace tokenyard::collectives {

class InterconnectedChannel final : public Channel {
 public:
  InterconnectedChannel(std::unique_ptr<TcpChannel> meeting, Interconnect& network);

  size_t send_some(std::span<const std::byte> bytes) override {
    return met() ? body_->send_some(bytes) : 0;
  }
  size_t receive_some(std::span<std::byte> into) override {
    return met() ? body_->receive_some(into) : 0;
  }
  std::span<const std::byte> arrived(size_t wanted) override {
    return met() ? body_->arrived(wanted) : std::span<const std::byte>();
  }
  void consume(size_t bytes) override { body_->consume(bytes); }
  bool in_place() const override { return body_->in_place(); }
  uint64_t bytes_sent() const override { return body_->bytes_sent(); }

  TcpChannel& meeting() { return *meeting_; }
  /// Returns whether both ends know each other, and continues the exchange: the other end may need
  /// it although nobody here uses the channel.
  bool met() { return connected_ || meet(); }

 private:
  struct Greeting {
    uint64_t number = 0;
    uint64_t address_bytes = 0;
  };
  bool meet();

  std::unique_ptr<TcpChannel> meeting_;
  std::unique_ptr<NumberedChannel> body_;
  std::vector<std::byte> mine_;  ///< greeting and address
  size_t said_ = 0;
  std::array<std::byte, sizeof(Greeting)> greeting_;
  size_t greeting_got_ = 0;
  std::vector<std::byte> address_;
  size_t address_got_ = 0;
  bool connected_ = false;
};

}  // namespace tokenyard::collectives
