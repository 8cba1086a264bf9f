#include "control/link.hpp"

#include <algorithm>
#include <span>
#include <utility>

namespace tokenyard::control {

void Link::send(uint16_t kind, std::vector<std::byte> payload) {
  if (finishing_) return;
  queued_ += payload.size() + net::kFrameHeaderBytes + net::kSealBytes;
  if (queued_ > kQueueMax) return close();
  queue_.push_back({kind, std::move(payload)});
  start_writing();
}

void Link::send_in_parts(Bulk bulk) {
  if (finishing_ && heard_) return;
  bulk_queued_ += bulk.message->size();
  if (bulk_queued_ > kBulkMax) return close();
  bulk_.push_back(std::move(bulk));
  start_writing();
}

std::deque<Link::Bulk> Link::take_unsent() {
  return std::exchange(bulk_, {});
}

void Link::take(bool of_ranks) {
  heard_ = true;
  moved_ += of_ranks;
  if (!bulk_.empty()) start_writing();
}

void Link::start_writing() {
  if (writing_ || (!heard_ && queue_.empty())) return;
  writing_ = true;
  asio::co_spawn(
      connection_->executor(), [self = shared_from_this()] { return self->write(); },
      asio::detached);
}

void Link::finish() {
  finishing_ = true;
  // Only the other end, or a timeout, closes it for reading: closing a socket with unread bytes
  // sends a reset, which could destroy our last messages.
  if (idle()) connection_->finish_writing();
}

void Link::close() {
  finishing_ = true;
  queue_.clear();
  bulk_.clear();
  connection_->close();
}

net::awaitable<void> Link::write() {
  try {
    while (!queue_.empty() || (heard_ && !bulk_.empty())) {
      if (queue_.empty()) {
        co_await write_part();
        continue;
      }
      const net::SealedFrame frame = std::move(queue_.front());
      queue_.pop_front();
      co_await connection_->write(frame.kind, frame.payload);
      queued_ -= std::min(queued_, frame.payload.size() + net::kFrameHeaderBytes + net::kSealBytes);
    }
    if (finishing_ && bulk_.empty()) connection_->finish_writing();
  } catch (const std::system_error&) {
    // The reader notices that the link is gone, once it has read what had arrived: a process that
    // was stopped, and evicted meanwhile, would else not learn of it.
    finishing_ = true;
    queue_.clear();
    if (heard_) bulk_.clear();
  }
  writing_ = false;
}

net::awaitable<void> Link::write_part() {
  Bulk& bulk = bulk_.front();
  const Bytes message = bulk.message;  // The queue may be cleared meanwhile.
  const auto rest = std::span(*message).subspan(bulk.sent);
  const auto part = rest.first(std::min(rest.size(), kPartMax));
  bulk.sent += part.size();
  const bool is_last = part.size() == rest.size();
  const uint16_t kind = is_last ? bulk.last : bulk.part;
  if (is_last) {
    bulk_queued_ -= message->size();
    bulk_.pop_front();
  }
  co_await connection_->write(kind, part);
  ++moved_;
}

}  // namespace tokenyard::control
