/// The channel that the engine holds, whichever transport its bytes use. Moves nothing until the
/// transport is settled, and nothing after the epoch has ended.
#pragma once

#include <memory>
#include <utility>

#include "collectives/transports/shared_channel.hpp"
#include "collectives/transports/tcp_channel.hpp"

namespace tokenyard::collectives {

class PairChannel final : public Channel {
 public:
  size_t send_some(std::span<const std::byte> bytes) override {
    return body_ ? body_->send_some(bytes) : 0;
  }
  size_t receive_some(std::span<std::byte> into) override {
    return body_ ? body_->receive_some(into) : 0;
  }
  std::span<const std::byte> arrived(size_t wanted) override {
    return body_ ? body_->arrived(wanted) : std::span<const std::byte>();
  }
  void consume(size_t bytes) override {
    if (body_) body_->consume(bytes);
  }
  bool in_place() const override { return body_ && body_->in_place(); }
  uint64_t bytes_sent() const override { return sent_ + (body_ ? body_->bytes_sent() : 0); }

  void use(std::unique_ptr<SharedChannel> body) {
    shared_ = body.get();
    tcp_ = nullptr;
    body_ = std::move(body);
  }
  void use(std::unique_ptr<TcpChannel> body) {
    shared_ = nullptr;
    tcp_ = body.get();
    body_ = std::move(body);
  }
  /// Ends the channel permanently. Returns its transport's channel, for the caller to release.
  std::unique_ptr<Channel> end() {
    sent_ = bytes_sent();
    shared_ = nullptr;
    tcp_ = nullptr;
    return std::move(body_);
  }
  SharedChannel* shared() const { return shared_; }
  TcpChannel* tcp() const { return tcp_; }

 private:
  std::unique_ptr<Channel> body_;
  SharedChannel* shared_ = nullptr;
  TcpChannel* tcp_ = nullptr;
  uint64_t sent_ = 0;
};

}  // namespace tokenyard::collectives
