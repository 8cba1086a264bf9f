#include "fabric/tcp/stream.hpp"

#include <fmt/format.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <array>
#include <utility>

namespace tokenyard::tcp {

namespace {

void set(Socket& socket, int level, int option, int value) {
  // A system without one of these notices dead hosts later; that is all.
  (void)setsockopt(socket.native_handle(), level, option, &value, sizeof value);
}

}  // namespace

Stream::Stream(Socket socket) : socket_(std::move(socket)) {
  asio::error_code ignored;
  remote_ = socket_.remote_endpoint(ignored);
  constexpr int kSeconds = static_cast<int>(kSilenceMax.count());
  set(socket_, IPPROTO_TCP, TCP_NODELAY, 1);
  set(socket_, SOL_SOCKET, SO_KEEPALIVE, 1);
  set(socket_, IPPROTO_TCP, TCP_KEEPIDLE, 1);
  set(socket_, IPPROTO_TCP, TCP_KEEPINTVL, 1);
  set(socket_, IPPROTO_TCP, TCP_KEEPCNT, kSeconds);
  // Keepalive says nothing while sent bytes are unacknowledged; this does.
  set(socket_, IPPROTO_TCP, TCP_USER_TIMEOUT, kSeconds * 1000);
}

awaitable<Frame> Stream::read(const FrameRules& rules) {
  std::array<std::byte, kHeaderBytes> head;
  co_await asio::async_read(socket_, asio::buffer(head), use_awaitable);
  Frame frame;
  frame.header = decode_header(head);
  if (const auto why = objection(frame.header, rules)) throw BadFrame(*why);
  frame.what.resize(frame.header.what_bytes);
  frame.payload.resize(frame.header.payload_bytes);
  const std::array<asio::mutable_buffer, 2> rest = {asio::buffer(frame.what),
                                                    asio::buffer(frame.payload)};
  co_await asio::async_read(socket_, rest, use_awaitable);
  co_return frame;
}

awaitable<void> Stream::write(const Frame& frame) {
  const std::vector<std::byte> bytes = encode(frame);
  co_await asio::async_write(socket_, asio::buffer(bytes), use_awaitable);
}

void Stream::close() {
  asio::error_code ignored;
  socket_.close(ignored);
}

void Stream::finish_writing() {
  asio::error_code ignored;
  socket_.shutdown(Socket::shutdown_send, ignored);
}

std::string Stream::remote_text() const {
  return fmt::format("{}:{}", remote_.address().to_string(), remote_.port());
}

Patience::Patience(std::shared_ptr<Stream> stream, std::chrono::nanoseconds time)
    : timer_(stream->socket().get_executor(), time) {
  timer_.async_wait([stream = std::move(stream)](const asio::error_code& error) {
    if (!error) stream->close();
  });
}

Patience::~Patience() {
  timer_.cancel();
}

awaitable<void> pause(std::chrono::milliseconds time) {
  asio::steady_timer timer(co_await asio::this_coro::executor, time);
  co_await timer.async_wait(use_awaitable);
}

}  // namespace tokenyard::tcp
