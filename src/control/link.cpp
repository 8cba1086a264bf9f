#include "control/link.hpp"

#include <algorithm>
#include <utility>

namespace tokenyard::control {

void Link::send(uint16_t kind, std::vector<std::byte> payload) {
  if (finishing_) return;
  queued_ += payload.size() + net::kFrameHeaderBytes + net::kSealBytes;
  if (queued_ > kQueueMax) return close();
  queue_.push_back({kind, std::move(payload)});
  if (writing_) return;
  writing_ = true;
  asio::co_spawn(
      connection_->executor(), [self = shared_from_this()] { return self->write(); },
      asio::detached);
}

void Link::finish() {
  finishing_ = true;
  // Only the other end, or a timeout, closes it for reading: closing a socket with unread bytes
  // sends a reset, which could destroy our last messages.
  if (!writing_) connection_->finish_writing();
}

void Link::close() {
  finishing_ = true;
  queue_.clear();
  connection_->close();
}

net::awaitable<void> Link::write() {
  try {
    while (!queue_.empty()) {
      const net::SealedFrame frame = std::move(queue_.front());
      queue_.pop_front();
      co_await connection_->write(frame.kind, frame.payload);
      queued_ -= std::min(queued_, frame.payload.size() + net::kFrameHeaderBytes + net::kSealBytes);
    }
    if (finishing_) connection_->finish_writing();
  } catch (const std::system_error&) {
    close();  // the reader notices that the link is gone
  }
  writing_ = false;
}

}  // namespace tokenyard::control
