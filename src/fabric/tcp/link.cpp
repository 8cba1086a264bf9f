#include "fabric/tcp/link.hpp"

#include <utility>

namespace tokenyard::tcp {

Link::Link(std::shared_ptr<FrameStream> stream, uint32_t peer, uint64_t session, Mailbox& mailbox)
    : stream_(std::move(stream)), peer_(peer), session_(session), mailbox_(mailbox) {}

void Link::start() {
  asio::co_spawn(
      stream_->executor(), [self = shared_from_this()] { return self->read(); }, asio::detached);
}

void Link::send(Bytes frame) {
  if (ended_ || leaving_) return;
  queue_.push_back(std::move(frame));
  if (writing_) return;
  writing_ = true;
  asio::co_spawn(
      stream_->executor(), [self = shared_from_this()] { return self->write(); }, asio::detached);
}

void Link::leave(Bytes goodbye, std::function<void()> gone) {
  if (ended_) return gone();
  gone_ = std::move(gone);
  send(std::move(goodbye));
  leaving_ = true;
}

void Link::expel() {
  if (!ended_) stream_->finish_reading();  // The reader reaches the end of what has arrived.
}

void Link::close() {
  stream_->close();
}

awaitable<void> Link::read() {
  const FrameRules rules{.job = session_, .what_max = kWhatMax, .payload_max = kPayloadMax};
  PeerState how = PeerState::lost;
  try {
    for (;;) {
      Frame frame = co_await stream_->read(rules);
      const auto kind = static_cast<FrameKind>(frame.header.kind);
      if (kind == FrameKind::goodbye) {
        how = PeerState::left;
        break;
      }
      if (kind != FrameKind::collective && kind != FrameKind::rebuild) break;
      Message message{
          .kind = kind == FrameKind::rebuild ? MessageKind::rebuild : MessageKind::collective,
          .generation = frame.header.generation,
          .sequence = frame.header.sequence,
          .what = std::move(frame.what),
          .bytes = std::move(frame.payload),
          .object = {}};
      if (!mailbox_.put(peer_, std::move(message))) break;
    }
  } catch (const std::exception&) {
    // Reset, closed, silent for too long, or not our protocol: the peer is lost.
  }
  ended(how);
}

awaitable<void> Link::write() {
  try {
    while (!queue_.empty()) {
      const Bytes frame = queue_.front();
      queue_.pop_front();
      co_await stream_->write_bytes(*frame);
    }
    // The peer closes once it has read our goodbye, which ends our reader.
    if (leaving_) stream_->finish_writing();
  } catch (const std::system_error&) {
    stream_->close();  // The reader reports the peer's loss.
  }
  writing_ = false;
}

void Link::ended(PeerState how) {
  if (ended_) return;
  ended_ = true;
  queue_.clear();
  stream_->close();
  mailbox_.mark(peer_, how);
  if (gone_) std::exchange(gone_, nullptr)();
}

}  // namespace tokenyard::tcp
