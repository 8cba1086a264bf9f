#include "collectives/transports/dial.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "tokenyard/error.hpp"

namespace tokenyard::collectives {

namespace {

constexpr std::chrono::milliseconds kPauseFirst(5);
constexpr std::chrono::milliseconds kPauseMax(500);

}  // namespace

Dial::Dial(const ConnectRequest& connect_request, const net::Key& key, const ChannelEndpoint& to,
           int buffer_bytes)
    : connect_request_(connect_request),
      frame_(encode(connect_request, key)),
      expected_(connect_reply(frame_, key)),
      address_(to.address),
      port_(to.port),
      buffer_bytes_(buffer_bytes),
      pause_(kPauseFirst) {}

std::optional<FileDescriptor> Dial::poll(WireTime now, net::Poller& poller) {
  if (!socket_) {
    if (now < next_try_) return std::nullopt;
    try {
      socket_ = net::connect_to(address_, port_);
      net::tune(socket_, buffer_bytes_);
      poller.watch_arrivals_and_room(socket_.native());
    } catch (const OsError& error) {
      fail(now, error.what());
      return std::nullopt;
    }
  }
  if (!sent_) {
    const net::Moved sent = net::send_now(socket_, frame_);
    // A fresh connection has room for such a message, or none at all while it is being established.
    if (sent.over || (sent.bytes > 0 && sent.bytes < frame_.size())) {
      fail(now, sent.error != 0 ? std::strerror(sent.error) : "no room in a fresh connection");
      return std::nullopt;
    }
    sent_ = sent.bytes > 0;
    if (!sent_) return std::nullopt;
  }
  const net::Moved got =
      net::receive_now(socket_, std::span(connect_reply_).subspan(connect_reply_bytes_));
  connect_reply_bytes_ += got.bytes;
  if (got.over) {
    fail(now, got.error != 0 ? std::strerror(got.error) : "rejected");
  } else if (connect_reply_bytes_ == connect_reply_.size()) {
    if (net::same(connect_reply_, expected_)) return std::move(socket_);
    fail(now, "another process listens there");
  }
  return std::nullopt;
}

void Dial::fail(WireTime now, const std::string& why) {
  trouble_ = fmt::format("{}:{}: {}", address_, port_, why);
  socket_.close();
  sent_ = false;
  connect_reply_bytes_ = 0;
  next_try_ = now + pause_;
  pause_ = std::min(pause_ * 2, kPauseMax);
}

}  // namespace tokenyard::collectives
